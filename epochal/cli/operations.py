"""``operations list | show | cancel``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Limit, Url, Wait
from epochal.cli.session import connected
from epochal.client import Operation
from epochal.errors import OperationCancelled

app = typer.Typer(help="See long work of the control plane, and cancel it.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="OPERATION", help="The operation's id: `epochal operations list`.")]


@app.command("list")
def list_operations(limit: Limit = 20, url: Url = None, as_json: Json = False) -> None:
    """List operations, newest first."""
    with connected(url, as_json) as session:
        operations = session.client.operations.list(limit)
        session.output.result(operations, _table(operations))


@app.command()
def show(operation: Id, url: Url = None, as_json: Json = False) -> None:
    """Show one operation."""
    with connected(url, as_json) as session:
        found = session.client.operations.get(operation)
        session.output.result(found, _table([found]))


@app.command()
def cancel(operation: Id, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """End an export, import, trial, rekey, collection, verification or backup, and remove what it has written."""
    with connected(url, as_json) as session:
        found = session.client.operations.cancel(operation)
        if wait and found.state == "running":
            try:
                found = session.wait(found, f"Cancelling {found.kind} {found.id}")
            except OperationCancelled:
                found = session.client.operations.get(found.id)
        done = "is cancelled" if found.state == "cancelled" else "is being cancelled"
        session.output.result(found, Text(f"Operation {found.kind} {found.id} {done}."))


def _table(operations: Sequence[Operation]) -> RenderableType:
    if not operations:
        return Text("No operations yet.", style="dim")
    table = Listing(
        Column("operation"),
        Column("kind"),
        Column("application"),
        Column("state"),
        Column("begun"),
        Column("progress", flexible=True),
    )
    for operation in operations:
        cancelling = operation.state == "running" and operation.cancel_requested_at is not None
        problem = operation.error.detail if operation.error is not None else ""
        table.add(
            Text(operation.id, style="bold yellow"),
            operation.kind,
            operation.application or "-",
            "cancelling" if cancelling else operation.state,
            formatting.age(operation.created_at),
            Text(operation.progress or problem),
        )
    return table
