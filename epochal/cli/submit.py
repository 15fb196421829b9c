"""``submit``, ``fork`` and ``artifacts``: new applications and their code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.application_view import ended
from epochal.cli.formatting import Column, Listing
from epochal.cli.options import (
    AcceptChanged,
    AcceptPartial,
    AllowDropped,
    AvailableNow,
    Drain,
    File,
    Json,
    Limit,
    LineageNote,
    Name,
    Parameter,
    ParametersFile,
    Setting,
    Url,
    Wait,
    acceptance,
    configuration,
    moment,
    parameters,
)
from epochal.cli.session import Session, connected
from epochal.client import Application, Client
from epochal.errors import InvalidInput, NotFound

app = typer.Typer()


NewName = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the application: lower-case letters, digits, hyphens.")
]


_TIME = "Fork from the latest snapshot at this time, such as 2030-01-01T00:00:00+00:00; local time without an offset."


_INTO = "Create the fork in another project as a copy. Requires the roles for `export` here and for `import` there."


NoStart = Annotated[bool, typer.Option("--no-start", help="Create the application without starting it.")]


@app.command()
def submit(
    file: File,
    name: NewName,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    no_start: NoStart = False,
    available_now: AvailableNow = False,
    drain: Drain = True,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Register FILE, analyse it, and create and start an application.

    Waits until the application runs, or with --available-now until it has ended.
    """
    if available_now and no_start:
        raise typer.BadParameter(
            "Use --available-now with `epochal start` instead of --no-start.", param_hint="--no-start"
        )
    values, configured = parameters(parameter, parameters_file), configuration(setting)
    with connected(url, as_json) as session:
        with session.output.busy(f"Analysing {file.name}"):
            artifact = session.client.artifacts.upload(file)
            application = session.client.applications.create(
                name,
                artifact.sha256,
                parameters=values,
                configuration=configured,
                start=not no_start,
                available_now=available_now,
                drain=drain,
            )
            graph = session.client.application(name).versions.list(1)[0].graph
        for warning in () if graph is None else graph.warnings:
            session.output.warn(warning)
        origin = f"from {file.name}"
        if available_now and wait:
            application = session.wait_until_processed(name)
            session.output.result(application, Text(f"{name} is created {origin}; it {ended(application)}."))
            return
        _answer(session, application, start=not no_start, wait=wait, origin=origin)


@app.command()
def fork(
    source: Name,
    name: Annotated[str, typer.Argument(metavar="NEW", help="The new application's name.")],
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Fork from this epoch.")] = None,
    savepoint: Annotated[str | None, typer.Option("--savepoint", "-s", help="Fork from this savepoint.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Fork from the snapshot with this tag.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help=_TIME)] = None,
    file: Annotated[Path | None, typer.Option("--file", help="New code: a Python file or a zip.")] = None,
    parameter: Parameter = None,
    parameters_file: ParametersFile = None,
    setting: Setting = None,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    allow_dropped_state: AllowDropped = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Run without writing to any sink.")] = False,
    message: LineageNote = None,
    into: Annotated[str | None, typer.Option("--into", metavar="PROJECT", help=_INTO)] = None,
    no_start: NoStart = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create an application from a snapshot of APP, by default its head, without copying state.

    A fork into another project is a copy by export and import, which shares no files with APP. Waits until the
    application runs.
    """
    named = {"--epoch": epoch, "--savepoint": savepoint, "--tag": tag, "--at": at}
    if len([each for each in named.values() if each is not None]) > 1:
        raise typer.BadParameter("Specify only one of --epoch, --savepoint, --tag and --at.", param_hint="--epoch")
    if into is not None and (at is not None or file is not None):
        option = "--at" if at is not None else "--file"
        raise typer.BadParameter(f"A fork into another project does not support {option}.", param_hint=option)
    values, configured = parameters(parameter, parameters_file), configuration(setting, allow_dropped_state)
    then = moment(at)
    with connected(url, as_json) as session:
        with session.output.busy(f"Forking {source}"):
            application = session.client.applications.fork(
                source,
                name,
                epoch=epoch,
                savepoint=savepoint,
                tag=tag,
                at=then,
                parameters=values,
                artifact=None if file is None else session.client.artifacts.upload(file).sha256,
                configuration=configured,
                shadow=shadow,
                start=not no_start,
                message=message,
                **acceptance(accept_changed, accept_partial),
                into=into,
            )
        origin = f"as a fork of {source}{_at(application)}"
        if into is None:
            _answer(session, application, start=not no_start, wait=wait, origin=origin)
    if into is not None:
        with connected(url, as_json, into) as session:
            _answer(session, application, start=not no_start, wait=wait, origin=f"in project {into}, {origin}")


def _at(application: Application) -> str:
    start = application.parent or application.imported_from
    return "" if start is None else f" at epoch {start.epoch}"


def _answer(session: Session, application: Application, *, start: bool, wait: bool, origin: str) -> None:
    name = application.name
    if start and wait:
        application = session.wait_until_running(name)
    if not start:
        follow_up = f"start it with `epochal start {name}`"
    elif wait:
        follow_up = f"it is {application.state}"
    else:
        follow_up = f"it is starting; follow its log with `epochal logs -f {name}`"
    session.output.result(application, Text(f"{name} is created {origin}; {follow_up}."))


artifacts_app = typer.Typer(help="List, print and delete registered code.", no_args_is_help=True)


_WHOLE = 64


@artifacts_app.command("list")
def list_artifacts(limit: Limit = 20, url: Url = None, as_json: Json = False) -> None:
    """List registered code, newest first."""
    with connected(url, as_json) as session:
        artifacts = session.client.artifacts.list(limit)
        table = Listing(Column("sha256"), Column("file", flexible=True), Column("bytes"), Column("uploaded"))
        for artifact in artifacts:
            age = formatting.age(artifact.created_at)
            table.add(formatting.code(artifact.sha256), Text(artifact.filename, style="bold"), str(artifact.bytes), age)
        session.output.result(artifacts, table)


Sha256 = Annotated[
    str, typer.Argument(metavar="SHA256", help="SHA-256 of the code, or its first digits: `epochal artifacts list`.")
]


@artifacts_app.command()
def source(
    sha256: Sha256,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Path of a file in a zip.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print registered code: a Python file, or FILE of a zip; without FILE, the files of the zip."""
    with connected(url, as_json) as session:
        answer = session.client.artifacts.source(_whole(session.client, sha256), file)
        if as_json or (file is None and answer.filename.endswith(".zip")):
            table = Listing(Column("file", flexible=True), Column("bytes"), Column("text"))
            for each in answer.files:
                table.add(Text(each.path, style="bold"), str(each.bytes), (each.omitted or "yes").replace("_", " "))
            session.output.result(answer, table)
            return
        (found,) = answer.files
        if found.text is None:
            raise InvalidInput(f"The text of {found.path!r} cannot be shown: {str(found.omitted).replace('_', ' ')}.")
        sys.stdout.write(found.text)


@artifacts_app.command()
def delete(
    sha256: Sha256,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete code that no version of an application uses."""
    with connected(url, as_json) as session:
        found = _whole(session.client, sha256)
        session.client.artifacts.delete(found)
        session.output.result({"deleted": found}, Text(f"Artifact {formatting.code(found)} is deleted."))


def _whole(client: Client, beginning: str) -> str:
    if len(beginning) == _WHOLE:
        return beginning
    found = [artifact.sha256 for artifact in client.artifacts.list() if artifact.sha256.startswith(beginning)]
    if not found:
        raise NotFound(f"There is no artifact {beginning!r}; see `epochal artifacts list`.")
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} artifacts begin with {beginning!r}; give more digits.")
    return found[0]
