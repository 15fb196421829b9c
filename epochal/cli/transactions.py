"""``transaction list | retry | commit | abort``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Name, Url, Wait
from epochal.cli.session import Session, connected
from epochal.client.models import Operation, Transaction

app = typer.Typer(
    help="See what is decided and not committed in a sink, and decide on it by hand.", no_args_is_help=True
)

Sink = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]
Epoch = Annotated[int, typer.Argument(metavar="EPOCH", help="The epoch's number.", min=0)]
Note = Annotated[str | None, typer.Option("--message", "-m", help="Why, for the audit log and lineage.")]
Sure = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_transactions(name: Name, url: Url = None, as_json: Json = False) -> None:
    """List what is prepared and not committed, for each sink, and why it waits."""
    with connected(url, as_json) as session:
        transactions = session.client.application(name).transactions.list()
        session.output.result(transactions, transaction_table(transactions))


@app.command()
def retry(
    name: Name,
    sink: Sink,
    epoch: Epoch,
    message: Note = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Try to commit it now, whatever the back-off."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).transactions.retry(sink, epoch, message)
        _finish(session, operation, wait, f"Sink {sink} of {name} tries epoch {epoch} again.")


@app.command()
def commit(
    name: Name,
    sink: Sink,
    epoch: Epoch,
    message: Note = None,
    yes: Sure = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Say that it was applied by hand; Epochal then never writes it."""
    with connected(url, as_json) as session:
        _confirm(yes or as_json, f"Was epoch {epoch} applied to sink {sink} by hand, all of it?")
        operation = session.client.application(name).transactions.commit(sink, epoch, message)
        _finish(session, operation, wait, f"Epoch {epoch} counts as committed in sink {sink} of {name}.")


@app.command()
def abort(
    name: Name,
    sink: Sink,
    epoch: Epoch,
    message: Note = None,
    yes: Sure = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Drop its rows, in this sink alone; they are gone for good."""
    with connected(url, as_json) as session:
        _confirm(yes or as_json, f"Drop what epoch {epoch} would write to sink {sink}, for good?")
        operation = session.client.application(name).transactions.abort(sink, epoch, message)
        _finish(session, operation, wait, f"Epoch {epoch} is dropped in sink {sink} of {name}; other sinks have it.")


def _confirm(sure: bool, question: str) -> None:
    if not sure:
        typer.confirm(question, abort=True)


def _finish(session: Session, operation: Operation, wait: bool, said: str) -> None:
    if not wait:
        session.output.result(operation, Text(f"The driver is asked to, by operation {operation.id}."))
        return
    operation = session.wait(operation, "Waiting for the driver")
    session.output.result(operation, Text(said))


def transaction_table(transactions: Sequence[Transaction], now: datetime | None = None) -> RenderableType:
    if not transactions:
        return Text("Everything that is decided is committed in every sink.", style="dim")
    table = Listing(
        Column("epoch", numeric=True),
        Column("sink"),
        Column("rows", numeric=True),
        Column("prepared", optional=True),
        Column("waiting", optional=True),
        Column("why", flexible=True),
    )
    for item in transactions:
        on_its_way = "on its way" if item.driver else "no driver runs; the next start commits it"
        table.add(
            str(item.epoch),
            Text(item.sink, style="bold"),
            formatting.count(item.rows),
            formatting.age(item.prepared_at, now),
            formatting.age(item.waiting_since, now),
            Text(item.error, style="red") if item.error else Text(on_its_way, style="dim"),
        )
    return table
