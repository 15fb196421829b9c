"""``epochs`` and ``lineage``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Literal

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli import words
from epochal.cli.lineage_view import LineageView
from epochal.cli.listing import Column, Listing
from epochal.cli.options import Json, Limit, Name, Url
from epochal.cli.session import connected
from epochal.client import Epoch
from epochal.contracts.conditions import Trigger
from epochal.wire.snapshots import FoldedRange

app = typer.Typer()

_TRIGGERS: dict[Trigger, str] = {
    "input": "input",
    "due": "due time",
    "in_flight": "records in flight",
    "command": "command",
    "drain": "end of input",
}
_LOOK = {"started": "yellow", "prepared": "cyan", "committed": "green", "aborted": "red"}


@app.command()
def epochs(
    name: Name,
    limit: Limit = 20,
    state: Annotated[
        str | None, typer.Option("--state", help="Only these: started, prepared, committed or aborted.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List an application's epochs, newest first: counts, times, and why one was aborted."""
    with connected(url, as_json) as session:
        epochs = session.client.application(name).epochs
        records = epochs.list(limit, state)
        session.output.result(records, epoch_table(records))
        if any(newer.epoch - older.epoch > 1 for newer, older in pairwise(records)):
            for folded in epochs.folded():
                if records[-1].epoch < folded.first < records[0].epoch:
                    session.output.note(_folded_line(folded))


def _folded_line(folded: FoldedRange) -> str:
    epochs, until = f"Epochs {folded.first:,} to {folded.last:,}", f"{folded.committed_until:%Y-%m-%d %H:%M} UTC"
    if not folded.committed:
        return f"{epochs} were aborted until {until}."
    some = f", of which {folded.aborted:,} were aborted, were" if folded.aborted else " were"
    sums = f"{folded.rows_in:,} rows in, {folded.rows_out:,} rows out"
    return f"{epochs}{some} committed until {until}. They are kept as sums: {sums}."


class LineageFormat(StrEnum):
    """``text`` draws in the terminal; ``dot`` is for Graphviz, ``svg`` a picture."""

    text = "text"
    json = "json"
    dot = "dot"
    svg = "svg"


@app.command()
def lineage(
    name: Name,
    limit: Limit = 100,
    every: Annotated[bool, typer.Option("--all", help="Show each epoch; do not fold plain ones.")] = False,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where a page ended, which its last line says.")
    ] = None,
    format: Annotated[
        LineageFormat, typer.Option("--format", help="dot and svg are folded, and begin with the newest.")
    ] = LineageFormat.text,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Draw the tree of snapshots: epochs, savepoints, forks, rollbacks, upgrades; runs of plain epochs are folded."""
    if format in (LineageFormat.dot, LineageFormat.svg):
        if as_json or every or cursor:
            raise typer.BadParameter(f"{format.value} goes without --json, --all and --cursor.", param_hint="--format")
        with connected(url, as_json) as session:
            kind: Literal["dot", "svg"] = "dot" if format is LineageFormat.dot else "svg"
            sys.stdout.write(session.client.application(name).lineage_drawing(kind, limit))
        return
    with connected(url, as_json or format is LineageFormat.json) as session:
        tree = session.client.application(name).lineage(limit, fold=not every, cursor=cursor)
        session.output.result(tree, LineageView(tree, fold=not every))


def _left_out(rows: Mapping[str, int]) -> str:
    return words.count(sum(rows.values())) if rows else ""


def _least_watermark(record: Epoch) -> str:
    """Of the places that are furthest behind; by place they stand in the JSON, and in ``show``."""
    fires = [marks.fire for marks in record.watermarks.values() if marks.fire is not None]
    return min(fires).strftime("%Y-%m-%d %H:%M:%S") if fires else ""


def epoch_table(records: list[Epoch]) -> RenderableType:
    if not records:
        return Text("No epochs yet.", style="dim")
    table = Listing(
        Column("epoch", numeric=True),
        Column("state"),
        Column("rows in", numeric=True),
        Column("rows out", numeric=True),
        Column("changed", numeric=True, optional=True),
        Column("delta", numeric=True, optional=True),
        Column("took", numeric=True),
        Column("attempt", numeric=True, optional=True),
        Column("opened for", optional=True),
        Column("in flight", numeric=True, optional=True),
        Column("late", numeric=True, optional=True),
        Column("rejected", numeric=True, optional=True),
        Column("timers dropped", numeric=True, optional=True),
        Column("watermark", optional=True),
        Column("next due", optional=True),
        Column("ended", numeric=True),
        Column("why", flexible=True),
    )
    for record in records:
        took = None if record.prepared_at is None else (record.prepared_at - record.started_at).total_seconds()
        table.add(
            Text(str(record.epoch), style="bold"),
            Text(record.state, style=_LOOK[record.state]),
            words.count(record.rows_in),
            words.count(record.rows_out),
            words.count(record.state_rows),
            words.size(record.state_bytes),
            "" if took is None else f"{took:.2f} s",
            str(record.attempt),
            ", ".join(_TRIGGERS[trigger] for trigger in record.opened_for),
            "" if record.in_flight is None else words.count(sum(record.in_flight.values())),
            _left_out(record.late_rows),
            _left_out(record.rejected_rows),
            _left_out(record.dropped_timers),
            _least_watermark(record),
            "" if record.next_due is None else words.due(record.next_due),
            Text(words.age(record.committed_at or record.prepared_at or record.started_at), style="dim"),
            Text("" if record.failure is None else record.failure.message.partition("\n")[0], style="red"),
        )
    return table
