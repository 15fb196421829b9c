"""``upgrade``, ``rescale``, ``rekey`` and ``preflight``: new versions of an application."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.cli.options import (
    AcceptChanged,
    AcceptPartial,
    AllowDropped,
    IfMatch,
    Json,
    LineageNote,
    Name,
    Parameter,
    ParametersFile,
    Setting,
    Url,
    Wait,
    acceptance,
    configuration,
    parameters,
)
from epochal.cli.session import connected
from epochal.client import Client
from epochal.client.models import PartChange, Preflight, StateChange, Trial, TrialSink
from epochal.wire.bodies import read
from epochal.wire.configuration import merged_settings

app = typer.Typer()


_STYLES = {
    "same": "dim",
    "added": "green",
    "evolved": "yellow",
    "changed": "yellow",
    "dropped": "red",
    "refused": "red",
    "removed": "red",
}


OtherFile = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="New code.  \\[default: unchanged]")]


@app.command()
def upgrade(
    name: Name,
    file: OtherFile = None,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    allow_dropped_state: AllowDropped = None,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    message: LineageNote = None,
    if_match: IfMatch = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Upgrade APP to new code, parameters or settings; all others stay unchanged.

    A running application changes at an epoch boundary, and returns to the previous version if the first epoch fails.
    """
    values, configured = _changes(parameter, parameters_file, setting, allow_dropped_state)
    with connected(url, as_json) as session:
        with session.output.busy(f"Analysing {file.name if file else name}"):
            # Unchanged values come from this revision; a concurrent change must not be overwritten.
            seen = session.client.applications.get(name).revision if values or configured else None
            artifact = None if file is None else session.client.artifacts.upload(file).sha256
            version = session.client.application(name).versions.create(
                artifact,
                **_merged(session.client, name, values, configured),
                **acceptance(accept_changed, accept_partial),
                message=message,
                if_match=if_match or seen,
            )
        if version.operation is None:
            text = f"{name} has version {version.number}; its next start uses it."
            session.output.result(version, Text(text))
            return
        operation = session.client.operations.get(version.operation)
        if not wait:
            session.output.result(operation, Text(f"{name} is being upgraded to version {version.number}."))
            return
        operation = session.wait(operation, f"Upgrading {name} to version {version.number}")
        session.output.result(operation, Text(f"{name} runs version {version.number}{_since(operation.result)}."))


@app.command()
def rescale(
    name: Name,
    numbers: Annotated[
        list[str],
        typer.Argument(
            metavar="N|OPERATOR=N..",
            help="Number of subtasks per operator, and of single operators: 8 spent=16. OPERATOR=default removes the "
            "number of an operator.",
        ),
    ],
    message: LineageNote = None,
    if_match: IfMatch = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change the parallelism of APP, or of single operators, without a restart."""
    parallelism, operators = numbers_of_subtasks(numbers)
    shown = " ".join(numbers)
    with connected(url, as_json) as session:
        versions = session.client.application(name).versions
        operation = versions.rescale(parallelism, operators=operators, message=message, if_match=if_match)
        if wait:
            operation = session.wait(operation, f"Rescaling {name} to {shown}")
        since = _since(operation.result)
        said = f"{name} runs with parallelism {shown}{since}." if since else f"{name} will start with {shown}."
        session.output.result(operation, Text(said))


def numbers_of_subtasks(texts: Sequence[str]) -> tuple[int | None, dict[str, int | None]]:
    """The number of the application, and those of operators; ``None`` for ``default``. Raises
    ``typer.BadParameter``."""
    usual: int | None = None
    operators: dict[str, int | None] = {}
    for text in texts:
        operator, equals, number = text.rpartition("=")
        named = bool(operator) or not equals
        if named and equals and number == "default":
            chosen = None
        elif named and number.isascii() and number.isdecimal() and int(number) > 0:
            chosen = int(number)
        else:
            raise typer.BadParameter(
                f"{text!r} is no number of subtasks. Give a number, 8, or that of an operator, spent=16.",
                param_hint="N|OPERATOR=N..",
            )
        if (operator in operators) if equals else usual is not None:
            raise typer.BadParameter(f"{text!r}: two numbers are given.", param_hint="N|OPERATOR=N..")
        if equals:
            operators[operator] = chosen
        else:
            usual = chosen
    return usual, operators


@app.command()
def rekey(
    name: Name,
    max_parallelism: Annotated[int, typer.Argument(min=1, help="New number of key groups.")],
    parallelism: Annotated[
        int | None, typer.Option("--parallelism", min=1, help="Number of subtasks per operator.")
    ] = None,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    message: LineageNote = None,
    if_match: IfMatch = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change max_parallelism of a stopped APP. A Spark job rewrites its state."""
    with connected(url, as_json) as session:
        versions = session.client.application(name).versions
        operation = versions.rekey(
            max_parallelism,
            parallelism=parallelism,
            **acceptance(accept_changed, accept_partial),
            message=message,
            if_match=if_match,
        )
        if not wait:
            text = f"{name} is being re-keyed by operation {operation.id}, and cannot be started until it ends."
            session.output.result(operation, Text(text))
            return
        operation = session.wait(operation, f"Re-keying {name}")
        version = (operation.result or {})["version"]
        text = f"{name} has {max_parallelism} key groups, and version {version}; its next start uses them."
        session.output.result(operation, Text(text))


@app.command()
def preflight(
    name: Name,
    file: OtherFile = None,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    allow_dropped_state: AllowDropped = None,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    epoch: Annotated[
        int | None, typer.Option("--epoch", min=0, help="Continue from this epoch instead of the head.")
    ] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", help="Continue from this savepoint.")] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", min=1, metavar="N", help="Run the last N epochs again in shadow and compare the results."
        ),
    ] = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show what an upgrade would keep, add and remove, without upgrading. Exit code 1 if it would be refused."""
    values, configured = _changes(parameter, parameters_file, setting, allow_dropped_state)
    with connected(url, as_json) as session:
        with session.output.busy(f"Checking {file.name if file else name}"):
            proposed: dict[str, Any] = {
                "artifact": None if file is None else session.client.artifacts.upload(file).sha256,
                "parameters": _merged(session.client, name, values, {})["parameters"],
                "configuration": configured,
                "epoch": epoch,
                "savepoint": savepoint,
                **acceptance(accept_changed, accept_partial),
            }
            versions = session.client.application(name).versions
            report = versions.preflight(**proposed) if trial is None else None
        if trial is not None:
            operation = versions.trial(trial, **proposed)
            if not wait:
                session.output.result(operation, Text(f"Trial started as operation {operation.id}."))
                return
            operation = session.wait(operation, f"Trying {file.name if file else name}")
            report = read(Preflight, operation.result)
        assert report is not None
        session.output.result(report, preflight_page(report))
    if not report.ok:
        raise typer.Exit(1)


def _changes(
    parameter: list[str] | None, file: Path | None, setting: list[str] | None, dropped: list[str] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    return parameters(parameter, file), configuration(setting, dropped)


def _merged(client: Client, name: str, values: dict[str, Any], configured: dict[str, Any]) -> dict[str, Any]:
    """Merge given values over the current ones; ``None`` if none are given."""
    now = client.applications.get(name)
    return {
        "parameters": {**now.parameters, **values} if values else None,
        "configuration": merged_settings(now.configuration, configured) if configured else None,
    }


def _since(result: dict[str, Any] | None) -> str:
    epoch = (result or {}).get("epoch")
    return "" if epoch is None else f" since epoch {epoch}"


def preflight_page(report: Preflight) -> RenderableType:
    at = "no snapshot yet" if report.snapshot is None else f"epoch {report.snapshot.epoch}"
    title = Text.assemble((report.application, "bold"), f" from {at}")
    verdict = Text("✓ accepted", "bold green") if report.ok else Text("✗ refused", "bold red")
    return Group(title, _table(report), *_said(report), *_trial(report.trial), verdict)


def _table(report: Preflight) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "name", "", "what"):
        table.add_column(column)
    parts: Sequence[tuple[str, Sequence[PartChange]]] = (
        ("operator", report.comparison.operators),
        ("source", report.comparison.sources),
        ("sink", report.comparison.sinks),
        ("entry", report.comparison.entries),
    )
    for kind, changes in parts:
        for part in changes:
            table.add_row(kind, part.name, Text(part.verdict, _STYLES.get(part.verdict, "")), _between(part))
    for change in report.comparison.tables:
        table.add_row("state", change.table, Text(change.verdict, _STYLES.get(change.verdict, "")), _columns(change))
        for difference in _differences(change):
            table.add_row("", "", "", difference)
    return table


def _between(part: PartChange) -> str:
    if part.verdict == "changed":
        return f"{part.before} → {part.after}"
    return (part.after if part.verdict == "added" else part.before) or ""


def _columns(change: StateChange) -> str:
    if change.verdict in ("added", "dropped"):
        return ""
    said = [f"+{column.name} {column.type}" for column in change.added]
    said += [f"{name} {before} → {after}" for name, (before, after) in change.widened.items()]
    said += [f"-{name}" for name in change.dropped]
    return ", ".join(said)


def _differences(change: StateChange) -> Iterator[Text]:
    """One line for each changed meaning, for columns that count only later rows, and for changed code."""
    for meaning in change.changed:
        name = meaning.what if meaning.column is None else f"{meaning.what} of {meaning.column}"
        accepted = " (accepted)" if meaning.accepted else ""
        yield Text(f"{name}: {meaning.before} → {meaning.after}{accepted}", "yellow")
    if change.partial:
        yield Text(f"counts later rows only: {', '.join(change.partial)}", "yellow")
    if change.code_changed:
        yield Text(f"code changed: {', '.join(change.code_changed)}", "dim")
    if change.unknown:
        yield Text("meaning unknown: the version stored no definition", "dim")


def _said(report: Preflight) -> Iterator[Text]:
    for problem in report.comparison.problems:
        yield Text.assemble(("✗ ", "red"), problem)
    for warning in report.comparison.warnings:
        yield Text.assemble(("! ", "yellow"), warning)
    if report.restarts:
        yield Text.assemble(("! ", "yellow"), "Spark's resources change: the upgrade restarts the driver.")


def _trial(trial: Trial | None) -> Iterator[Text]:
    if trial is None:
        return
    base = "the start" if trial.base is None else f"epoch {trial.base}"
    yield Text(f"trial: {trial.epochs} epochs from {base} in {trial.seconds:.1f} s", "bold")
    for table in trial.tables:
        differing = table.different + table.only_before + table.only_after
        if not differing:
            yield Text(f"  {table.table}: {table.rows:,} rows, no differences", "green")
            continue
        yield Text(
            f"  {table.table}: {table.different:,} rows differ, {table.only_before:,} only in the current state, "
            f"{table.only_after:,} only in the trial",
            "yellow",
        )
        for example in table.examples:
            yield Text(f"    {example}", "dim")
    for sink in trial.sinks:
        yield from _sink(sink)


def _sink(sink: TrialSink) -> Iterator[Text]:
    if not sink.only_before and not sink.only_after:
        yield Text(f"  {sink.sink}: {sink.after:,} rows out, no differences", "green")
    else:
        yield Text(
            f"  {sink.sink}: {sink.only_before:,} of {sink.before:,} rows only before, {sink.only_after:,} of "
            f"{sink.after:,} rows only after",
            "yellow",
        )
    for example in sink.examples:
        yield Text(f"    {'-' if example['version'] == 'before' else '+'} {example['row']}", "dim")
    if sink.committed not in (None, sink.before):
        yield Text(
            f"    {sink.committed:,} rows were committed: other versions or nondeterminism contributed", "yellow"
        )
