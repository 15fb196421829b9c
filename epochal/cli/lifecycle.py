"""``lifecycle``: what changed what runs, why, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import RenderableType
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import Json, Limit, Name, Url
from epochal.cli.session import connected
from epochal.client.models import LifecycleItem, RunSettings

app = typer.Typer()

_LOOK = {"running": "yellow", "succeeded": "green", "failed": "red", "cancelled": "dim"}


@app.command()
def lifecycle(name: Name, limit: Limit = 20, url: Url = None, as_json: Json = False) -> None:
    """List an application's starts, stops, restarts, rescales, upgrades, rollbacks and recoveries, newest first."""
    with connected(url, as_json) as session:
        items = session.client.application(name).lifecycle(limit)
        session.output.result(items, lifecycle_table(items))


def lifecycle_table(items: Sequence[LifecycleItem]) -> RenderableType:
    if not items:
        return Text("Never started.", style="dim")
    table = Listing(
        Column("change"),
        Column("state"),
        Column("began", numeric=True),
        Column("took", numeric=True),
        Column("by", optional=True),
        Column("from", optional=True),
        Column("to", optional=True),
        Column("why", flexible=True),
    )
    for item in items:
        table.add(
            Text(item.kind if item.attempt is None else f"{item.kind} (attempt {item.attempt})", style="bold"),
            Text(item.state, style=_LOOK.get(item.state, "")),
            Text(formatting.age(item.began_at), style="dim"),
            "" if item.seconds is None else f"{item.seconds:.1f} s",
            item.by or "",
            _settings(item.before),
            _settings(item.after),
            _why(item),
        )
    return table


def _settings(settings: RunSettings | None) -> str:
    if settings is None:
        return ""
    numbers = [str(settings.parallelism), *(f"{name} {number}" for name, number in settings.parallelisms.items())]
    return f"version {settings.version}, parallelism {', '.join(numbers)}"


def _why(item: LifecycleItem) -> Text:
    if item.error is not None:
        return Text(item.error.detail.partition("\n")[0], style="red")
    if item.cause is not None:
        return Text(item.cause.message.partition("\n")[0])
    return Text(item.message or "")
