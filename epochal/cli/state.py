"""``get``, ``scan`` and ``diff``: read state, its history and the differences between snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypedDict, TypeVar
from urllib.parse import unquote

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from epochal.cli.formatting import Column, Listing
from epochal.cli.options import At, Json, Limit, Name, Tag, Url, moment
from epochal.cli.session import Session, connected
from epochal.cli.state_view import (
    Shown,
    blame_view,
    diff_rows_view,
    diff_view,
    history_view,
    key_groups_view,
    scan_view,
    since_notes,
)
from epochal.client import StateValue
from epochal.errors import NotFound

app = typer.Typer()


FIRST_EPOCH_SECONDS = 120.0
"""Timeout of look-ups for the first epoch of a running application."""


_SNAPSHOT = "Epoch, savepoint, tag or head"


Answer = TypeVar("Answer")


class IsolationName(StrEnum):
    """``read_uncommitted`` includes decided epochs whose sinks have not committed yet."""

    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


class Moment(TypedDict):
    """Selection of an older snapshot."""

    epoch: int | None
    savepoint: str | None
    tag: str | None
    at: datetime | None


def key_columns(text: str) -> list[str | None]:
    """Split a key given as one argument, percent-encoded: ``JFK,LAX``; ``%00`` is null."""
    return [None if column == "%00" else unquote(column) for column in text.split(",")]


class KeyCommand(TyperCommand):
    """A command with keys. The error for a key that looks like an option explains ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest: list[str] = []
        try:
            rest = super().parse_args(ctx, list(args))
        except Exception as error:
            option = getattr(error, "option_name", None)
            # A misspelt option has similar names; otherwise the argument is a key.
            if option is None or getattr(error, "possibilities", None):
                raise
            key = next((argument for argument in args if argument.startswith(option)), option)
            ctx.fail(
                f"No such option: {key}. A key that begins with a hyphen comes after --, and options before it: "
                f"{ctx.command_path} .. -- {key}"
            )
        return rest


@app.command(cls=KeyCommand)
def get(
    name: Name,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the state table: `epochal show`.")],
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY",
            help="Values of the key columns in order: JFK LAX, or JFK,LAX with %2C for a comma and %00 for null.",
        ),
    ],
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Read this epoch.")] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", help="Read this savepoint.")] = None,
    tag: Tag = None,
    at: At = None,
    history: Annotated[bool, typer.Option("--history", help="Show all changes of the key, newest first.")] = False,
    blame: Annotated[
        bool, typer.Option("--blame", help="Show the epoch that last changed the key: slices, code, parameters, time.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="With --history: maximum number of changes.")] = 50,
    min_epoch: Annotated[
        int | None, typer.Option("--min-epoch", min=0, help="Wait until this epoch is committed.")
    ] = None,
    wait_seconds: Annotated[
        float | None, typer.Option("--wait-seconds", min=0, help="With --min-epoch: timeout.")
    ] = None,
    isolation: Annotated[IsolationName | None, typer.Option("--isolation")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Look up a key in the state of an application, running or stopped, or show its history.

    Waits for the first epoch of an application that has just been submitted.

    Options come first. A key that begins with a hyphen, such as a negative number, comes after --:
    epochal get APP TABLE -- -5
    """
    columns: Sequence[str | None] = key_columns(key[0]) if len(key) == 1 else key
    then: Moment = {"epoch": epoch, "savepoint": savepoint, "tag": tag, "at": moment(at)}
    if history and blame:
        raise typer.BadParameter("Specify only one of them.", param_hint="--history / --blame")
    if (history or blame) and (min_epoch is not None or wait_seconds is not None or isolation is not None):
        raise typer.BadParameter(
            "Cannot be combined with --min-epoch, --wait-seconds and --isolation.", param_hint="--history / --blame"
        )
    with connected(url, as_json) as session:
        state = session.client.application(name).state(table)
        latest = all(value is None for value in then.values())
        if history:
            changes = _found(session, name, latest, lambda: state.history(*columns, limit=limit, **then))
            session.output.result(changes, lambda: history_view(Shown.of(session, name, table).history(changes)))
        elif blame:
            found = _found(session, name, latest, lambda: state.blame(*columns, **then))
            session.output.result(found, lambda: blame_view(Shown.of(session, name, table).blame(found)))
        else:
            answer = _found(
                session,
                name,
                latest and min_epoch is None,
                lambda: state.get(
                    *columns,
                    min_epoch=min_epoch,
                    wait_seconds=wait_seconds,
                    isolation=None if isolation is None else isolation.value,
                    **then,
                ),
            )
            session.output.result(answer, lambda: value_view(Shown.of(session, name, table).lookup(answer)))


@app.command(cls=KeyCommand)
def scan(
    name: Name,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the state table: `epochal show`.")],
    prefix: Annotated[
        str,
        typer.Argument(metavar="[PREFIX]", help="Leading key columns: JFK, or JFK,L* for a text prefix."),
    ] = "",
    limit: Limit = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue after a page.")] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Read this epoch.")] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", help="Read this savepoint.")] = None,
    tag: Tag = None,
    at: At = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List rows of a state table in key order, one page at a time.

    Options come first. A prefix that begins with a hyphen, such as a negative number, comes after --:
    epochal scan APP TABLE -- -5
    """
    begins_with = prefix.endswith("*")
    columns = key_columns(prefix.removesuffix("*")) if prefix else []
    with connected(url, as_json) as session:
        page = (
            session.client.application(name)
            .state(table)
            .scan(
                *columns,
                begins_with=begins_with,
                limit=min(limit, 500),
                cursor=cursor,
                epoch=epoch,
                savepoint=savepoint,
                tag=tag,
                at=moment(at),
            )
        )
        session.output.result(page, lambda: scan_view(Shown.of(session, name, table).scan(page), name))


@app.command()
def diff(
    name: Name,
    before: Annotated[str, typer.Argument(metavar="FROM", help=f"{_SNAPSHOT}.")],
    after: Annotated[
        str, typer.Argument(metavar="TO", help=f"{_SNAPSHOT}; for another application of the lineage, NAME:EPOCH.")
    ] = "head",
    table: Annotated[
        str | None, typer.Option("--table", "-t", help="Show the differing rows of this state table.")
    ] = None,
    limit: Limit = 50,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Compare two snapshots: code, parameters, input read between them, and keys of every state table."""
    with connected(url, as_json) as session:
        snapshots = session.client.application(name).snapshots
        if table is not None:
            rows = snapshots.diff_rows(before, after, table, limit=limit)
            session.output.result(rows, lambda: diff_rows_view(Shown.of(session, name, table).rows(rows)))
            return
        found = snapshots.diff(before, after)
        session.output.result(found, diff_view(found))


@app.command(name="key-groups")
def key_groups(
    name: Name,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="State table.")],
    at: Annotated[str, typer.Option("--at", help=_SNAPSHOT + ".")] = "head",
    limit: Limit = 10,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show the largest key groups of a state table, to find skew. Counts rows of the table's files."""
    with connected(url, as_json) as session:
        sizes = session.client.application(name).snapshots.key_groups(at, table)
        session.output.result(sizes, key_groups_view(sizes, limit))


def _found(session: Session, name: str, latest: bool, look: Callable[[], Answer]) -> Answer:
    """Return the answer of ``look``. If the latest state is requested and a running application has not committed an
    epoch, wait for its first epoch."""
    try:
        return look()
    except NotFound:
        application = session.client.applications.get(name)
        if not latest or application.head is not None or application.state not in ("starting", "running"):
            raise
    with session.output.busy(f"Waiting for the first epoch of {name}") as progress:
        session.client.applications.wait(
            name,
            "committed",
            on_progress=lambda now: progress(now.detail or now.state),
            timeout_seconds=FIRST_EPOCH_SECONDS,
        )
    return look()


def value_view(answer: StateValue) -> RenderableType:
    key = ", ".join(_text(value) for value in answer.key.values())
    source = f"{answer.table} · epoch {answer.epoch} of {answer.branch}"
    title = Text.assemble((key, "bold"), ("  " + source, "dim"))
    notes = since_notes(answer.since)
    if answer.entries is not None:
        return Group(title, _entries(answer.entries), *notes)
    if answer.instances is not None:
        return Group(title, _instances(answer), *notes)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in (answer.value or {}).items():
        grid.add_row(name, Text(_text(value)))
    return Group(title, grid, *notes)


def _instances(answer: StateValue) -> RenderableType:
    """A row for each instance and, if available, the merged value."""
    instances = answer.instances or []
    names = list(dict.fromkeys(name for each in instances for name in each.value))
    table = Listing(Column("instance"), *(Column(name) for name in names))
    for each in instances:
        table.add(str(each.instance), *(_text(each.value.get(name)) for name in names))
    if answer.value is not None:
        table.add(Text("all", style="bold"), *(Text(_text(answer.value.get(name)), style="bold") for name in names))
    return table


def _entries(entries: list[dict[str, Any]]) -> RenderableType:
    if not entries:
        return Text("no entries", style="dim")
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    table = Listing(*(Column(name) for name in names))
    for entry in entries:
        table.add(*(_text(entry.get(name)) for name in names))
    return table


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
