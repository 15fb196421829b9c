"""``export`` and ``import``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.text import Text

from epochal.cli import options
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import (
    AcceptChanged,
    AcceptPartial,
    Json,
    Name,
    Parameter,
    ParametersFile,
    Setting,
    Url,
    Wait,
    time_of,
)
from epochal.cli.output import Output
from epochal.cli.session import connected
from epochal.client.bundles import Progress as TransferProgress
from epochal.client.models import ImportPlan

app = typer.Typer()


@app.command("export")
def export_application(
    name: Name,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Output file.  \\[default: APP-EPOCH.epochal]")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option("--epoch", min=0, help="Export this epoch.  \\[default: the latest]")
    ] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", metavar="NAME")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="NAME")] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since",
            min=0,
            metavar="EPOCH",
            help="Export only changes after this epoch, which the importer already has.",
        ),
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Message stored in the bundle.")] = None,
    begun: Annotated[
        str | None,
        typer.Option("--operation", metavar="ID", help="Download the bundle of this export operation."),
    ] = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Export a snapshot as a bundle: state, code, parameters and source positions."""
    with connected(url, as_json) as session:
        exports = session.client.application(name).exports
        if begun is not None:
            operation = session.client.operations.get(begun)
        else:
            operation = exports.create(epoch=epoch, savepoint=savepoint, tag=tag, since=since, message=message)
        if not wait:
            later = f"epochal export {name} --operation {operation.id}"
            session.output.result(operation, Text(f"{name} is being exported. Download the bundle with: {later}"))
            return
        operation = session.wait(operation, f"Bundling {name}")
        result = operation.result or {}
        file = output or Path(str(result["filename"]))
        with _bar(session.output, f"Fetching {file.name}") as progress:
            exports.fetch(operation, file, progress)
        text = f"{name} at epoch {result['epoch']} is in {file} ({result['bytes']} bytes)."
        if result.get("left_out"):
            text += f" Not included, because not durable: {', '.join(result['left_out'])}."
        session.output.result({**result, "file": str(file)}, Text(text))


@app.command("import")
def import_bundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Bundle written by `epochal export`.")],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="APP", help="Name of the application.  \\[default: its name in the bundle]"),
    ] = None,
    parameter: Parameter = None,
    parameters: ParametersFile = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="Replace a value in parameters, such as a path, a topic or brokers. Repeatable.",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="SINK",
            help="Keep the target of this sink of the exported application. Repeatable.",
        ),
    ] = None,
    source_at: Annotated[
        list[str] | None,
        typer.Option(
            "--source-at",
            metavar="SOURCE=TIME",
            help="Continue this source at a time, for other brokers. Repeatable.",
        ),
    ] = None,
    setting: Setting = None,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Write to no sink.")] = False,
    start: Annotated[bool, typer.Option("--start", help="Start the application.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Message recorded in the lineage.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without importing.")] = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create an application from a bundle. The bundle's code is executed: import only trusted bundles."""
    request: dict[str, Any] = {
        "name": name,
        "parameters": options.parameters(parameter, parameters),
        "map": dict(_pairs(mapping, "--map")),
        "keep": keep or [],
        "sources": _times(source_at),
        "configuration": options.configuration(setting),
        "shadow": shadow,
        "start": start,
        "message": message,
        **options.acceptance(accept_changed, accept_partial),
    }
    with connected(url, as_json) as session:
        with _bar(session.output, f"Uploading {file.name}") as progress:
            upload = session.client.imports.upload(file, progress)
        if dry_run:
            plan = session.client.imports.plan(upload.id, **request)
            session.output.result(plan, plan_view(plan))
            return
        operation = session.client.imports.make(upload.id, **request)
        if not wait:
            session.output.result(operation, Text(f"Import of {file} started as operation {operation.id}."))
            return
        operation = session.wait(operation, f"Importing {file.name}")
        result = operation.result or {}
        ends = "it is starting" if start else f"start it with `epochal start {result['application']}`"
        parent = result["parent"]
        text = f"{result['application']} is imported, at epoch {parent['epoch']} of {parent['branch']}; {ends}."
        session.output.result(operation, Text(text))


def plan_view(plan: ImportPlan) -> RenderableType:
    """View of an import plan."""
    origin = plan.origin
    said = Text(
        f"{origin['application']} at epoch {origin['epoch']}, exported by {origin['by']} at {origin['exported_at']}, "
        f"becomes {plan.application}."
    )
    table = Listing(Column("sink"), Column("was", flexible=True), Column("becomes", flexible=True))
    for sink in plan.sinks:
        table.add(sink.sink, sink.was, sink.becomes)
    return Group(said, table, *(Text(need, style="yellow") for need in plan.needs))


@contextmanager
def _bar(output: Output, doing: str) -> Iterator[TransferProgress | None]:
    """Show a progress bar on a terminal, otherwise periodic lines."""
    if not output.animated:
        with output.busy(doing) as show:
            yield lambda done, size: show(f"{done >> 20} of {size >> 20} MiB" if size else f"{done >> 20} MiB")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=output.notes, transient=True) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, size: progress.update(task, completed=done, total=size)


def _pairs(options: Sequence[str] | None, option: str) -> Iterator[tuple[str, str]]:
    for pair in options or ():
        old, equals, new = pair.partition("=")
        if not old or not equals:
            raise typer.BadParameter(f"{pair!r} is not OLD=NEW.", param_hint=option)
        yield old, new


def _times(options: Sequence[str] | None) -> dict[str, datetime]:
    return {name: time_of(text, "--source-at") for name, text in _pairs(options, "--source-at")}
