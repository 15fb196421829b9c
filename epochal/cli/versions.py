"""``upgrade``, ``rescale``, ``rekey``, ``preflight``: other versions of an application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
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
from epochal.cli.preflight_view import preflight_page
from epochal.cli.session import connected
from epochal.client import Client
from epochal.client.models import Preflight
from epochal.wire.bodies import read
from epochal.wire.configuration import merged_settings

app = typer.Typer()

OtherFile = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Other code; else the code stays.")]


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
    """Give APP other code, parameters or settings; what is not given stays.

    A running application goes on with it at an epoch boundary, and back when its first epoch fails.
    """
    values, configured = _changes(parameter, parameters_file, setting, allow_dropped_state)
    with connected(url, as_json) as session:
        with session.output.busy(f"Analysing {file.name if file else name}"):
            # What is not said stays: of the application as it is now, not of what somebody makes of it meanwhile.
            seen = session.client.applications.get(name).revision if values or configured else None
            artifact = None if file is None else session.client.artifacts.upload(file).sha256
            version = session.client.application(name).versions.create(
                artifact,
                **_merged(session.client, name, values, configured),
                **acceptance(accept_changed, accept_partial),
                message=message,
                if_match=if_match or seen or None,
            )
        if version.operation is None:
            text = f"{name} has version {version.number}; its next start uses it."
            session.output.result(version, Text(text))
            return
        operation = session.client.operations.get(version.operation)
        if not wait:
            session.output.result(operation, Text(f"{name} goes on with version {version.number} soon."))
            return
        operation = session.wait(operation, f"Upgrading {name} to version {version.number}")
        session.output.result(operation, Text(f"{name} runs version {version.number}{_since(operation.result)}."))


@app.command()
def rescale(
    name: Name,
    parallelism: Annotated[int, typer.Argument(min=1, help="Subtasks per operator.")],
    message: LineageNote = None,
    if_match: IfMatch = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change the parallelism of APP; a running one is not restarted."""
    with connected(url, as_json) as session:
        operation = session.client.application(name).versions.rescale(parallelism, message=message, if_match=if_match)
        if wait:
            operation = session.wait(operation, f"Rescaling {name} to {parallelism}")
        since = _since(operation.result)
        said = (
            f"{name} runs with parallelism {parallelism}{since}." if since else f"{name} will run with {parallelism}."
        )
        session.output.result(operation, Text(said))


@app.command()
def rekey(
    name: Name,
    max_parallelism: Annotated[int, typer.Argument(min=1, help="Key groups from now on.")],
    parallelism: Annotated[int | None, typer.Option("--parallelism", min=1, help="Subtasks per operator.")] = None,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    message: LineageNote = None,
    if_match: IfMatch = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change max_parallelism of a stopped APP: its state is written anew by a Spark job."""
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
            text = f"{name} is re-keyed by operation {operation.id}; until that is over it cannot be started."
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
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Go on from this epoch, not the head.")] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", help="Go on from this savepoint.")] = None,
    trial: Annotated[
        int | None, typer.Option("--trial", min=1, metavar="N", help="Run the last N epochs again, and compare.")
    ] = None,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Check an upgrade without doing it: what would be kept, added, lost. Exit code 1 when it would be refused."""
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
                session.output.result(operation, Text(f"The trial has begun, as operation {operation.id}."))
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
    """What is given over what is there; ``None`` where nothing is given."""
    now = client.applications.get(name)
    return {
        "parameters": {**now.parameters, **values} if values else None,
        "configuration": merged_settings(now.configuration, configured) if configured else None,
    }


def _since(result: dict[str, Any] | None) -> str:
    epoch = (result or {}).get("epoch")
    return "" if epoch is None else f" since epoch {epoch}"
