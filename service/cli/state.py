"""``get``: point look-ups."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.client import StateValue
from epochal.service.cli.listing import Column, Listing
from epochal.service.cli.options import Json, Name, Url
from epochal.service.cli.session import connected

app = typer.Typer()


class IsolationName(StrEnum):
    """``read_uncommitted`` also sees epochs that are decided, and whose sinks are still being committed."""

    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


@app.command()
def get(
    name: Name,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The state table, as `epochal show` lists it.")],
    key: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="The key columns' values in order: JFK LAX, or JFK,LAX (%2C is a comma)."),
    ],
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="As it was at this epoch.")] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", help="As it was at this savepoint.")] = None,
    min_epoch: Annotated[
        int | None, typer.Option("--min-epoch", min=0, help="Not older than this epoch; waits for it.")
    ] = None,
    wait: Annotated[float | None, typer.Option("--wait", min=0, help="How long to wait, in seconds.")] = None,
    isolation: Annotated[IsolationName | None, typer.Option("--isolation")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Look one key up in an application's state; also while it is stopped."""
    columns = [unquote(column) for column in key[0].split(",")] if len(key) == 1 else key
    with connected(url, as_json) as session:
        answer = (
            session.client.application(name)
            .state(table)
            .get(
                *columns,
                epoch=epoch,
                savepoint=savepoint,
                min_epoch=min_epoch,
                wait_seconds=wait,
                isolation=None if isolation is None else isolation.value,
            )
        )
        session.output.result(answer, value_view(answer))


def value_view(answer: StateValue) -> RenderableType:
    key = ", ".join(_text(value) for value in answer.key.values())
    source = f"{answer.table} · epoch {answer.epoch} of {answer.branch}"
    title = Text.assemble((key, "bold"), ("  " + source, "dim"))
    if answer.entries is not None:
        return Group(title, _entries(answer.entries))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in (answer.value or {}).items():
        grid.add_row(name, Text(_text(value)))
    return Group(title, grid)


def _entries(entries: tuple[dict[str, Any], ...]) -> RenderableType:
    if not entries:
        return Text("no entries", style="dim")
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    table = Listing(*(Column(name) for name in names))
    for entry in entries:
        table.add(*(_text(entry.get(name)) for name in names))
    return table


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
