"""``scan`` and ``diff``."""

from __future__ import annotations

from typing import Annotated

import typer

from epochal.cli.internal_columns import Shown
from epochal.cli.key_command import KeyCommand, key_columns
from epochal.cli.options import At, Json, Limit, Name, Tag, Url, moment
from epochal.cli.past_view import diff_rows_view, diff_view, scan_view
from epochal.cli.session import connected

app = typer.Typer()

_SNAPSHOT = "An epoch, a savepoint, a tag, or head"


@app.command(cls=KeyCommand)
def scan(
    name: Name,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The state table, as `epochal show` lists it.")],
    prefix: Annotated[
        str,
        typer.Argument(metavar="[PREFIX]", help="Only keys with these leading columns: JFK; JFK,L* (a beginning)."),
    ] = "",
    limit: Limit = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where a page ended.")] = None,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="As it was at this epoch.")] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", help="As it was at this savepoint.")] = None,
    tag: Tag = None,
    at: At = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List a state table's rows in key order, a page at a time; also as they were.

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
        str, typer.Argument(metavar="TO", help=f"{_SNAPSHOT}; of another application of the lineage as NAME:EPOCH.")
    ] = "head",
    table: Annotated[str | None, typer.Option("--table", "-t", help="Show this state table's rows.")] = None,
    limit: Limit = 50,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Compare two snapshots: code, parameters, what was read between, and the keys of every state table."""
    with connected(url, as_json) as session:
        snapshots = session.client.application(name).snapshots
        if table is not None:
            rows = snapshots.diff_rows(before, after, table, limit=limit)
            session.output.result(rows, lambda: diff_rows_view(Shown.of(session, name, table).rows(rows)))
            return
        found = snapshots.diff(before, after)
        session.output.result(found, diff_view(found))
