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
    help="List transactions that sinks have not committed, and resolve them manually.", no_args_is_help=True
)

Sink = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]
Epoch = Annotated[int, typer.Argument(metavar="EPOCH", help="The epoch's number.", min=0)]
Note = Annotated[str | None, typer.Option("--message", "-m", help="Message recorded in the audit log and the lineage.")]
Sure = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list")
def list_transactions(name: Name, url: Url = None, as_json: Json = False) -> None:
    """List prepared transactions that are not committed, by epoch and sink, with the reason."""
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
    """Retry the commit now, without waiting for the back-off."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).transactions.retry(sink, epoch, message)
        _finish(session, operation, wait, f"Sink {sink} of {name} retries epoch {epoch}.")


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
    """Mark a transaction as committed, after it was applied manually. Epochal does not write it."""
    with connected(url, as_json) as session:
        _confirm(yes or as_json, f"Was epoch {epoch} applied completely to sink {sink}?")
        operation = session.client.application(name).transactions.commit(sink, epoch, message)
        _finish(session, operation, wait, f"Epoch {epoch} is marked as committed in sink {sink} of {name}.")


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
    """Drop the rows of an epoch in this sink permanently. Other sinks are not affected."""
    with connected(url, as_json) as session:
        _confirm(yes or as_json, f"Drop the rows of epoch {epoch} in sink {sink} permanently?")
        operation = session.client.application(name).transactions.abort(sink, epoch, message)
        _finish(
            session,
            operation,
            wait,
            f"Epoch {epoch} is dropped in sink {sink} of {name}. Other sinks are not affected.",
        )


def _confirm(sure: bool, question: str) -> None:
    if not sure:
        typer.confirm(question, abort=True)


def _finish(session: Session, operation: Operation, wait: bool, said: str) -> None:
    if not wait:
        session.output.result(operation, Text(f"Requested from the driver by operation {operation.id}."))
        return
    operation = session.wait(operation, "Waiting for the driver")
    session.output.result(operation, Text(said))


def transaction_table(transactions: Sequence[Transaction], now: datetime | None = None) -> RenderableType:
    if not transactions:
        return Text("No open transactions: every decided epoch is committed in every sink.", style="dim")
    table = Listing(
        Column("epoch", numeric=True),
        Column("sink"),
        Column("rows", numeric=True),
        Column("prepared", optional=True),
        Column("waiting", optional=True),
        Column("why", flexible=True),
    )
    for item in transactions:
        status = "commit in progress" if item.driver else "no driver runs; the next start commits it"
        table.add(
            str(item.epoch),
            Text(item.sink, style="bold"),
            formatting.count(item.rows),
            formatting.age(item.prepared_at, now),
            formatting.age(item.waiting_since, now),
            Text(item.error, style="red") if item.error else Text(status, style="dim"),
        )
    return table
