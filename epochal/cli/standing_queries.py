"""``query add | list | show | results | pause | resume | drop``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Name, Url, Wait, moment
from epochal.cli.session import Session, connected
from epochal.client.models import Operation, QueryResult, StandingQuery
from epochal.errors import NotFound

app = typer.Typer(help="Add standing queries to an application, and show their results.", no_args_is_help=True)

COMMIT_SECONDS: Final = 10.0
"""Timeout for the commit of a query's first epoch."""
Id = Annotated[int, typer.Argument(metavar="QUERY", help="Id of the query.", min=1)]
Sql = Annotated[
    str, typer.Argument(metavar="SQL", help="SELECT device, count(*) AS n GROUP BY device WINDOW '5 minutes'")
]
Operator = Annotated[
    str | None,
    typer.Option("--of", metavar="NAME", help="Name of the standing_queries operator, if there are several."),
]
Expires = Annotated[
    str | None,
    typer.Option("--expires-after", metavar="INTERVAL", help="Drop the query after this interval, such as '7 days'."),
]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of results.", min=1)]
End = Annotated[
    str | None,
    typer.Option(
        "--min-window-end",
        metavar="TIME",
        help="Show only windows that end at this time or later: 2013-01-31T05:15:00Z; a time without a zone is local.",
    ),
]


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
    """Add a query. The application answers it from the next epoch on."""
    with connected(url, as_json) as session:
        queries = session.client.application(name).queries
        operation = queries.add(sql, operator=operator, expires_after=expires_after)
        _begun(session, name, operation, wait)


@app.command("list")
def list_queries(name: Name, url: Url = None, as_json: Json = False) -> None:
    """List the queries of the latest committed epoch."""
    with connected(url, as_json) as session:
        queries = session.client.application(name).queries.list()
        session.output.result(queries, query_table(queries))


@app.command()
def show(name: Name, query: Id, url: Url = None, as_json: Json = False) -> None:
    """Show a query: text, owner, first window, expiry."""
    with connected(url, as_json) as session:
        found = session.client.application(name).queries.get(query)
        session.output.result(found, query_page(found))


@app.command()
def results(
    name: Name, query: Id, limit: Limit = 100, min_window_end: End = None, url: Url = None, as_json: Json = False
) -> None:
    """Show the results of a query by window and group."""
    end = moment(min_window_end, "--min-window-end")
    with connected(url, as_json) as session:
        found = list(session.client.application(name).queries.results(query, limit, min_window_end=end))
        session.output.result(found, result_table(found))


@app.command()
def pause(name: Name, query: Id, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """Pause a query; its results are kept."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).queries.pause(query)
        _finish(session, operation, wait, "Query {query} of " + name + " is paused from epoch {epoch} on.")


@app.command()
def resume(name: Name, query: Id, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """Resume a paused query from the next complete window."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).queries.resume(query)
        _begun(session, name, operation, wait)


@app.command()
def drop(name: Name, query: Id, wait: Wait = True, url: Url = None, as_json: Json = False) -> None:
    """Drop a query and its results."""
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


def query_page(query: StandingQuery) -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    for name, said in _lines(query):
        lines.add_row(name, Text(said))
    return lines


def _lines(query: StandingQuery) -> Iterator[tuple[str, str]]:
    yield "query", query.query
    yield "id", f"{query.id}, of {query.operator}"
    yield "state", query.state
    yield "owner", query.owner
    yield "runs from", f"epoch {query.epoch} on"
    if query.first_window is not None:
        yield "first window", f"{_window(query.first_window.start, query.first_window.end)} (UTC)"
    if query.watermark is not None:
        yield "watermark", f"{query.watermark:%Y-%m-%d %H:%M:%S} (UTC)"
    yield "expires", "never" if query.expires_at is None else f"{query.expires_at:%Y-%m-%d %H:%M:%S} (UTC)"
    yield "cost", str(query.cost)


def result_table(results: Sequence[QueryResult]) -> RenderableType:
    if not results:
        return Text("No window has closed yet.", style="dim")
    table = Listing(Column("window"), Column("group"), Column("values", flexible=True, folds=True))
    for result in results:
        answer = Text(json.dumps(result.values, ensure_ascii=False)) if result.values is not None else Text("")
        if result.error:
            answer.append(f" {result.error}" if result.values is not None else result.error, style="red")
        window = _window(result.window_start, result.window_end)
        table.add(window, Text(json.dumps(result.group, ensure_ascii=False)), answer)
    return table


def _begun(session: Session, name: str, operation: Operation, wait: bool) -> None:
    """Print the first epoch and the first window of a query."""
    done = _carried_out(session, operation, wait)
    if done is None:
        return
    result = done.result or {}
    said = f"Query {result.get('query')} of {name} runs from epoch {result.get('epoch')} on. "
    session.output.result(done, lambda: Text(said + _first_answer(session, name, result["query"])))


def _first_answer(session: Session, name: str, query: int) -> str:
    """Describe the first window of a query, after its first epoch has committed."""
    queries, end = session.client.application(name).queries, time.monotonic() + COMMIT_SECONDS
    with session.output.busy("Waiting for the commit of the epoch"):
        while True:
            try:
                found = queries.get(query)
                break
            except NotFound:
                if time.monotonic() > end:
                    return (
                        f"The epoch is being committed; `epochal query show {name} {query}` then shows the first "
                        "window."
                    )
                time.sleep(0.2)
    if found.first_window is None:
        return "It answers each window when the watermark has reached the window's end."
    window = _window(found.first_window.start, found.first_window.end)
    return f"It answers windows from {window} (UTC) on, each when the watermark has reached its end{_now(found)}."


def _now(query: StandingQuery) -> str:
    return "" if query.watermark is None else f"; the watermark is {query.watermark:%Y-%m-%d %H:%M:%S}"


def _window(start: datetime, end: datetime) -> str:
    """A window; the end has a date only if it differs from the start's."""
    until = f"{end:%H:%M:%S}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    return f"{start:%Y-%m-%d %H:%M:%S} – {until}"


def _finish(session: Session, operation: Operation, wait: bool, said: str) -> None:
    done = _carried_out(session, operation, wait)
    if done is not None:
        session.output.result(done, Text(said.format_map(done.result or {})))


def _carried_out(session: Session, operation: Operation, wait: bool) -> Operation | None:
    """Wait for the operation; ``None`` with ``--no-wait``."""
    if not wait:
        session.output.result(operation, Text(f"Requested by operation {operation.id}."))
        return None
    if not session.output.animated and operation.progress:
        session.output.note(Text(f"{operation.progress[:1].upper()}{operation.progress[1:]} ..", style="dim"))
    return session.wait(operation, "Waiting for an epoch")
