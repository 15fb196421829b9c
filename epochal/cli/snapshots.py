"""``pin``, ``unpin``, ``tag``, ``untag``, ``message`` and ``savepoint``: annotations and names of snapshots."""

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
from epochal.cli.session import connected
from epochal.client import Savepoint

app = typer.Typer()


savepoints_app = typer.Typer(
    help="Create, list and delete savepoints: named snapshots that do not expire.", no_args_is_help=True
)


Epoch = Annotated[int, typer.Argument(metavar="EPOCH", min=0, help="Epoch of the snapshot.")]


OptionalEpoch = Annotated[
    int | None, typer.Argument(metavar="[EPOCH]", min=0, help="Epoch of the snapshot; omit it to list all.")
]


Note = Annotated[str | None, typer.Option("--message", "-m", help="Message to store.")]


TagName = Annotated[str, typer.Argument(metavar="TAG", help="The tag's name.")]


SavepointName = Annotated[str, typer.Argument(metavar="NAME", help="The savepoint's name.")]


_NOTE = Column("message", flexible=True)


@app.command()
def pin(name: Name, epoch: OptionalEpoch = None, message: Note = None, url: Url = None, as_json: Json = False) -> None:
    """Protect a snapshot from expiry until it is unpinned. Without EPOCH, list the pins."""
    with connected(url, as_json) as session:
        annotations = session.client.application(name).annotations
        if epoch is None:
            pins = annotations.pins()
            table = Listing(Column("epoch", numeric=True), Column("branch"), Column("pinned"), Column("by"), _NOTE)
            for item in pins:
                table.add(
                    str(item.epoch), item.branch, formatting.age(item.created_at), item.created_by, item.message or ""
                )
            session.output.result(pins, table)
            return
        session.output.result(annotations.pin(epoch, message), Text(f"Epoch {epoch} of {name} is pinned."))


@app.command()
def unpin(name: Name, epoch: Epoch, url: Url = None, as_json: Json = False) -> None:
    """Remove the pin of a snapshot, so that it can expire."""
    with connected(url, as_json) as session:
        session.client.application(name).annotations.unpin(epoch)
        session.output.result({"unpinned": epoch}, Text(f"Epoch {epoch} of {name} is no longer pinned."))


@app.command()
def tag(
    name: Name,
    epoch: OptionalEpoch = None,
    tag: Annotated[str | None, typer.Argument(metavar="[TAG]", help="The tag's name.")] = None,
    message: Note = None,
    move: Annotated[bool, typer.Option("--move", help="Move the tag from the snapshot that has it.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Tag a snapshot. Tags do not prevent expiry; pins do. Without EPOCH and TAG, list the tags."""
    if (epoch is None) != (tag is None):
        raise typer.BadParameter("Specify both EPOCH and TAG, or neither.", param_hint="TAG")
    with connected(url, as_json) as session:
        annotations = session.client.application(name).annotations
        if epoch is None or tag is None:
            tags = annotations.tags()
            table = Listing(Column("tag"), Column("epoch", numeric=True), Column("branch"), Column("by"), _NOTE)
            for item in tags:
                table.add(
                    Text(item.name, style="bold"), str(item.epoch), item.branch, item.created_by, item.message or ""
                )
            session.output.result(tags, table)
            return
        answer = annotations.tag(epoch, tag, message, move=move)
        session.output.result(answer, Text(f"Epoch {epoch} of {name} is tagged {tag}."))


@app.command()
def untag(name: Name, epoch: Epoch, tag: TagName, url: Url = None, as_json: Json = False) -> None:
    """Remove a tag from a snapshot."""
    with connected(url, as_json) as session:
        session.client.application(name).annotations.untag(epoch, tag)
        session.output.result(
            {"untagged": epoch, "tag": tag}, Text(f"Tag {tag} is removed from epoch {epoch} of {name}.")
        )


@app.command()
def message(
    name: Name,
    epoch: Epoch,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="Text of the message; omit it to print the message.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the message.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Write, print or delete the message of a snapshot."""
    if delete and text is not None:
        raise typer.BadParameter("TEXT and --delete cannot be combined.", param_hint="TEXT")
    with connected(url, as_json) as session:
        annotations = session.client.application(name).annotations
        if delete:
            annotations.delete_message(epoch)
            session.output.result({"deleted": epoch}, Text(f"The message of epoch {epoch} of {name} is deleted."))
            return
        said = annotations.message(epoch) if text is None else annotations.write_message(epoch, text)
        session.output.result(said, Text(said.message))


@savepoints_app.command()
def create(
    name: Name,
    savepoint: SavepointName,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Message to store.")] = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a savepoint. If there is input, an epoch runs first."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).savepoints.create(savepoint, message)
        if not wait:
            session.output.result(operation, Text(f"Savepoint {savepoint} of {name} is being created."))
            return
        operation = session.wait(operation, f"Creating savepoint {savepoint}")
        epoch = (operation.result or {}).get("epoch", "?")
        session.output.result(operation, Text(f"Savepoint {savepoint} of {name} is at epoch {epoch}."))


@savepoints_app.command("list")
def list_savepoints(name: Name, url: Url = None, as_json: Json = False) -> None:
    """List an application's savepoints, newest first."""
    with connected(url, as_json) as session:
        savepoints = session.client.application(name).savepoints.list()
        session.output.result(savepoints, savepoint_table(savepoints))


@savepoints_app.command()
def delete(name: Name, savepoint: SavepointName, url: Url = None, as_json: Json = False) -> None:
    """Delete a savepoint, so that its snapshot can expire."""
    with connected(url, as_json) as session:
        session.client.application(name).savepoints.delete(savepoint)
        session.output.result({"deleted": savepoint}, Text(f"Savepoint {savepoint} of {name} is deleted."))


def savepoint_table(savepoints: Sequence[Savepoint], now: datetime | None = None) -> RenderableType:
    if not savepoints:
        return Text("No savepoints. Create one with `epochal savepoint create APP NAME`.", style="dim")
    table = Listing(
        Column("savepoint"),
        Column("epoch", numeric=True),
        Column("branch", optional=True),
        Column("created"),
        Column("message", flexible=True),
    )
    for savepoint in savepoints:
        table.add(
            Text(savepoint.name, style="bold yellow"),
            str(savepoint.epoch),
            Text(savepoint.branch),
            formatting.age(savepoint.created_at, now),
            Text(savepoint.message or ""),
        )
    return table
