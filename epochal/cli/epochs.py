"""``epochs`` and ``lineage``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
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


def _left_out(rows: Mapping[str, int]) -> str:
    return formatting.count(sum(rows.values())) if rows else ""


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
            formatting.count(record.rows_in),
            formatting.count(record.rows_out),
            formatting.count(record.state_rows),
            formatting.size(record.state_bytes),
            "" if took is None else f"{took:.2f} s",
            str(record.attempt),
            ", ".join(_TRIGGERS[trigger] for trigger in record.opened_for),
            "" if record.in_flight is None else formatting.count(sum(record.in_flight.values())),
            _left_out(record.late_rows),
            _left_out(record.rejected_rows),
            _left_out(record.dropped_timers),
            _least_watermark(record),
            "" if record.next_due is None else formatting.due(record.next_due),
            Text(formatting.age(record.committed_at or record.prepared_at or record.started_at), style="dim"),
            Text("" if record.failure is None else record.failure.message.partition("\n")[0], style="red"),
        )
    return table
