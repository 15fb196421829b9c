"""``savepoint create | list | delete``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from epochal.cli.application_view import savepoint_table
from epochal.cli.options import Json, Name, Url, Wait
from epochal.cli.session import connected

app = typer.Typer(help="Name snapshots, and keep them until they are deleted.", no_args_is_help=True)

SavepointName = Annotated[str, typer.Argument(metavar="NAME", help="The savepoint's name.")]


@app.command()
def create(
    name: Name,
    savepoint: SavepointName,
    message: Annotated[str | None, typer.Option("--message", "-m", help="A note.")] = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run an epoch now, if there is input, and name its snapshot."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).savepoints.create(savepoint, message)
        if not wait:
            session.output.result(operation, Text(f"Savepoint {savepoint} of {name} is being made."))
            return
        operation = session.wait(operation, f"Making savepoint {savepoint}")
        epoch = (operation.result or {}).get("epoch", "?")
        session.output.result(operation, Text(f"Savepoint {savepoint} of {name} is at epoch {epoch}."))


@app.command("list")
def list_savepoints(name: Name, url: Url = None, as_json: Json = False) -> None:
    """List an application's savepoints, newest first."""
    with connected(url, as_json) as session:
        savepoints = session.client.application(name).savepoints.list()
        session.output.result(savepoints, savepoint_table(savepoints))


@app.command()
def delete(name: Name, savepoint: SavepointName, url: Url = None, as_json: Json = False) -> None:
    """Delete a savepoint's name; its snapshot then lives as long as any other."""
    with connected(url, as_json) as session:
        session.client.application(name).savepoints.delete(savepoint)
        session.output.result({"deleted": savepoint}, Text(f"Savepoint {savepoint} of {name} is deleted."))
