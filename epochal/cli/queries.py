"""``query add | list | show | results | pause | resume | drop``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli.listing import Column, Listing
from epochal.cli.options import Json, Name, Url, Wait
from epochal.cli.session import Session, connected
from epochal.client.models import Operation, QueryResult, StandingQuery

app = typer.Typer(help="Ask standing queries of an application, and see what they answer.", no_args_is_help=True)

Id = Annotated[int, typer.Argument(metavar="QUERY", help="The query's id.", min=1)]
Sql = Annotated[
    str, typer.Argument(metavar="SQL", help="SELECT device, count(*) AS n GROUP BY device WINDOW '5 minutes'")
]
Operator = Annotated[
    str | None, typer.Option("--of", metavar="NAME", help="Of which standing_queries, where there are several.")
]
Expires = Annotated[
    str | None, typer.Option("--expires-after", metavar="INTERVAL", help="Drop it after so long: '7 days'.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", help="So many at most.", min=1)]


@app.command()
def add(
    name: Name,
    sql: Sql,
    operator: Operator = None,
    expires_after: Expires = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add a query; the application answers it from the next epoch on."""
    with connected(url, as_json) as session:
        queries = session.client.application(name).queries
        operation = queries.add(sql, operator=operator, expires_after=expires_after)
        _finish(session, operation, wait, "Query {query} of " + name + " runs from epoch {epoch} on.")


@app.command("list")
def list_queries(name: Name, url: Url = None, as_json: Json = False) -> None:
    """List the queries that the latest committed epoch ran with."""
    with connected(url, as_json) as session:
        queries = session.client.application(name).queries.list()
        session.output.result(queries, query_table(queries))


@app.command()
def show(name: Name, query: Id, url: Url = None, as_json: Json = False) -> None:
    """Show a query: its text, who added it, from when on it answers."""
    with connected(url, as_json) as session:
        found = session.client.application(name).queries.get(query)
        session.output.result(found, query_table([found]))


@app.command()
def results(name: Name, query: Id, limit: Limit = 100, url: Url = None, as_json: Json = False) -> None:
    """Show what a query has answered: windows that have closed, by window and group."""
    with connected(url, as_json) as session:
        found = list(session.client.application(name).queries.results(query, limit))
        session.output.result(found, result_table(found))


@app.command()
def pause(name: Name, query: Id, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """Stop answering a query; its results stay."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).queries.pause(query)
        _finish(session, operation, wait, "Query {query} of " + name + " is paused from epoch {epoch} on.")


@app.command()
def resume(name: Name, query: Id, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """Answer a paused query again, beginning with the next whole window."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).queries.resume(query)
        _finish(session, operation, wait, "Query {query} of " + name + " runs from epoch {epoch} on.")


@app.command()
def drop(name: Name, query: Id, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """End a query; its results are gone."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).queries.drop(query)
        _finish(session, operation, wait, "Query {query} of " + name + " is dropped from epoch {epoch} on.")


def query_table(queries: Sequence[StandingQuery]) -> RenderableType:
    if not queries:
        return Text('No standing queries. Add one: epochal query add APP "SELECT .."', style="dim")
    table = Listing(
        Column("id", numeric=True),
        Column("state"),
        Column("owner", optional=True),
        Column("from epoch", numeric=True, optional=True),
        Column("expires", optional=True),
        Column("query", flexible=True),
    )
    for query in queries:
        table.add(
            str(query.id),
            Text(query.state, style="green" if query.state == "active" else "yellow"),
            Text(query.owner),
            str(query.epoch),
            "never" if query.expires_at is None else f"{query.expires_at:%Y-%m-%d %H:%M}",
            Text(query.query),
        )
    return table


def result_table(results: Sequence[QueryResult]) -> RenderableType:
    if not results:
        return Text("No window has closed yet.", style="dim")
    table = Listing(Column("window"), Column("group", flexible=True), Column("values", flexible=True))
    for result in results:
        answer = Text(json.dumps(result.values, ensure_ascii=False)) if result.values is not None else Text("")
        if result.error:
            answer.append(f" {result.error}" if result.values is not None else result.error, style="red")
        window = f"{result.window_start:%Y-%m-%d %H:%M:%S} – {result.window_end:%H:%M:%S}"
        table.add(window, Text(json.dumps(result.group, ensure_ascii=False)), answer)
    return table


def _finish(session: Session, operation: Operation, wait: bool, said: str) -> None:
    if not wait:
        session.output.result(operation, Text(f"The driver is asked to, by operation {operation.id}."))
        return
    operation = session.wait(operation, "Waiting for an epoch")
    session.output.result(operation, Text(said.format_map(operation.result or {})))
