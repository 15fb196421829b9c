"""``lags`` and ``events``: what the applications of a project are behind with, and what happens to them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Limit, Url
from epochal.cli.session import connected
from epochal.client import Client
from epochal.client.models import ApplicationLag, Event, SourceLag
from epochal.visible import visible
from epochal.wire.bodies import read

app = typer.Typer()

_MOST_APPLICATIONS = 10_000


@app.command()
def lags(limit: Limit = _MOST_APPLICATIONS, url: Url = None, as_json: Json = False) -> None:
    """List the rate and lag of each source of all applications, and the sinks and stores that they wait for."""
    with connected(url, as_json) as session:
        found = session.client.applications.lags(limit)
        session.output.result(found, lag_table(found, datetime.now(UTC)))


@app.command()
def events(
    name: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="The application's name.  \\[default: all of the project]")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print events until Ctrl-C.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of events to wait for, without --follow.")
    ] = 20,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Only events of this kind. Repeatable.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Begin after the event with this id (see --json).")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print the next events as they happen. With --json and --follow: one JSON document per line."""
    with connected(url, as_json) as session, closing(_stream(session.client, name, after, kind)) as stream:
        if not follow:
            some = islice(stream, limit)
            if as_json:
                session.output.document({"events": list(some)})
                return
            for event in some:
                typer.echo(event_line(event))
            return
        try:
            for event in stream:
                if as_json:
                    session.output.line(event)
                else:
                    typer.echo(event_line(event))
        except KeyboardInterrupt:
            return


def _stream(
    client: Client, name: str | None, after: str | None, kinds: Sequence[str] | None
) -> Generator[Event, None, None]:
    if name is None:
        yield from client.events(after, kinds=kinds)
    else:
        yield from client.application(name).events(after, kinds=kinds)


def lag_table(lags: Sequence[ApplicationLag], now: datetime) -> RenderableType:
    if not lags:
        return Text("No applications.", style="dim")
    table = Listing(
        Column("application"),
        Column("rate", numeric=True),
        Column("source", optional=True),
        Column("behind", numeric=True),
        Column("reported", numeric=True, optional=True),
        Column("waits for", flexible=True),
    )
    for lag in lags:
        rate = "" if lag.rows_per_second is None else f"{lag.rows_per_second:,.1f} rows/s"
        reported = Text(formatting.age(lag.reported_at, now), style="dim")
        first, *others = lag.sources.items() or [("", None)]
        table.add(Text(lag.application, style="bold"), rate, first[0], _behind(first[1]), reported, _waits(lag, now))
        for source, own in others:
            table.add("", "", source, _behind(own), "", "")
    return table


def _behind(source: SourceLag | None) -> str:
    if source is None:
        return ""
    numbers = ((source.records, "record"), (source.files, "file"))
    parts = [f"{number:,} {noun}{'' if number == 1 else 's'}" for number, noun in numbers if number]
    if source.seconds:
        parts.insert(0, f"{source.seconds:.1f} s")
    known = any(value is not None for value in (source.seconds, source.records, source.files))
    return ", ".join(parts) or ("nothing" if known else "unknown")


def _waits(lag: ApplicationLag, now: datetime) -> Text:
    parts = []
    if lag.store_away_since is not None:
        parts.append(f"store ({formatting.age(lag.store_away_since, now)})")
    for sink, since in lag.blocked_sinks.items():
        parts.append(f"sink {sink} ({formatting.age(since, now)})")
    parts += [f"source {name}" for name, source in lag.sources.items() if not source.reachable]
    return Text("; ".join(parts), style="yellow")


def event_line(event: Event) -> str:
    """One line: time in UTC, kind, application, and what has changed."""
    at = str(event.data.get("at", ""))[:19].replace("T", " ")
    application = event.data.get("application") or "-"
    return visible(f"{at}  {event.kind:<10} {application}  {_summary(event.kind, event.data)}")


def _summary(kind: str, data: dict[str, Any]) -> str:
    state = data.get("state", "")
    failure = data.get("failure") or data.get("error") or {}
    why = str(failure.get("message") or failure.get("detail") or "").partition("\n")[0]
    because = f": {why}" if why else ""
    if kind == "epoch":
        rows = (
            f", {data['rows_in']:,} rows in, {data.get('rows_out') or 0:,} rows out"
            if data.get("rows_in") is not None
            else ""
        )
        return f"epoch {data.get('epoch')} {state}{rows}{because}"
    if kind == "execution":
        return f"attempt {data.get('attempt')} {state}{because}"
    if kind == "operation":
        return f"{data.get('kind')} {state}{because}"
    if kind == "savepoint":
        return f"{data.get('name')} {'is deleted' if data.get('deleted') else 'is epoch ' + str(data.get('epoch'))}"
    if kind == "transaction":
        return _transaction(data)
    if kind == "load" and data.get("sources") is not None:
        return _load(read(ApplicationLag, data), datetime.fromisoformat(data["at"]))
    left = {name: value for name, value in data.items() if name not in ("application", "project", "at")}
    return ", ".join(f"{name} {value}" for name, value in left.items())


def _transaction(data: dict[str, Any]) -> str:
    sink, state = data.get("sink"), data.get("state")
    if state == "decided":
        return f"sink {sink}, epoch {data.get('epoch')}: {data.get('action')} by {data.get('by')}"
    since = str(data.get("blocked_since") or "")[:19].replace("T", " ")
    return f"sink {sink} is {state}{f' since {since}' if since else ''}"


def _load(lag: ApplicationLag, at: datetime) -> str:
    if lag.reported_at is None:
        return "no driver runs"
    rate = "no rate yet" if lag.rows_per_second is None else f"{lag.rows_per_second:,.1f} rows/s"
    sources = (f"{name} is behind by {_behind(source)}" for name, source in lag.sources.items() if _is_behind(source))
    waits = _waits(lag, at).plain
    return ", ".join([rate, *sources, *([f"waits for {waits}"] if waits else [])])


def _is_behind(source: SourceLag) -> bool:
    return bool(source.records or source.files or source.seconds)
