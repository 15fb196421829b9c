"""``epochs`` and ``lineage``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.client import Epoch
from epochal.service.cli import words
from epochal.service.cli.lineage_view import LineageView
from epochal.service.cli.listing import Column, Listing
from epochal.service.cli.options import Json, Limit, Name, Url
from epochal.service.cli.session import connected

app = typer.Typer()

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
        records = session.client.application(name).epochs.list(limit, state)
        session.output.result(records, epoch_table(records))


@app.command()
def lineage(
    name: Name,
    limit: Limit = 1000,
    every: Annotated[bool, typer.Option("--all", help="Show each epoch; do not fold plain ones.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Draw the tree of snapshots: epochs, savepoints, forks; runs of plain epochs are folded."""
    with connected(url, as_json) as session:
        tree = session.client.application(name).lineage(limit)
        session.output.result(tree, LineageView(tree, fold=not every))


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
            Text(words.age(record.committed_at or record.prepared_at or record.started_at), style="dim"),
            Text("" if record.failure is None else record.failure.message.partition("\n")[0], style="red"),
        )
    return table
