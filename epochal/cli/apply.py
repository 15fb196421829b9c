"""``apply``: bring applications to the state that files describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pydantic import BaseModel, Field
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.desired import NUMBERS, Change, Desired, Steps, Verb, read_desired, schema, steps
from epochal.cli.failures import ExitCode, exit_code, sentence
from epochal.cli.options import AcceptChanged, AcceptPartial, Json, LineageNote, Url, Wait, acceptance
from epochal.cli.output import encode
from epochal.cli.session import Session, connected
from epochal.client import Application, Operation
from epochal.errors import CatalogUnavailable, EpochalError, InvalidInput, NotFound, Unauthenticated

app = typer.Typer()

Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="YAML file that describes applications; - for standard input. Repeatable."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the changes without applying them. The role viewer suffices.")
]
PrintSchema = Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a document.")]

_DONE: dict[Verb, str] = {
    "create": "created",
    "upgrade": "upgraded",
    "rescale": "rescaled",
    "start": "started",
    "stop": "stopped",
}


class Applied(BaseModel):
    """Changes made to one application, or in a dry run the planned ones. ``version`` is its current version."""

    name: str
    actions: list[str] = Field(default_factory=list)
    version: int | None = None
    changes: list[Change] = Field(default_factory=list)
    error: str | None = None
    exit_code: int = int(ExitCode.OK)


@app.command()
def apply(
    file: Files = None,
    dry_run: DryRun = False,
    accept_changed: AcceptChanged = None,
    accept_partial: AcceptPartial = None,
    message: LineageNote = None,
    print_schema: PrintSchema = False,
    wait: Wait = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create, upgrade, rescale, start or stop applications to match their description in files.

    All files are validated before any change. Applying the same files again changes nothing. Applications are never
    deleted.
    """
    if print_schema:
        typer.echo(encode(schema()))
        return
    if not file:
        raise typer.BadParameter("Specify a file, or - for standard input.", param_hint="--file")
    desired, accepted = read_desired(file), acceptance(accept_changed, accept_partial)
    if any(accepted.values()) and len(desired) > 1:
        raise typer.BadParameter(
            "An acceptance applies to one upgrade: use a file that describes only this application.",
            param_hint="--file",
        )
    with ExitStack() as stack:
        session = stack.enter_context(connected(url, as_json))
        sessions: dict[str | None, Session] = {None: session}
        applied = []
        for each in desired:
            project = each.application.project
            if project not in sessions:
                sessions[project] = stack.enter_context(connected(url, as_json, project))
            applied.append(Applying(sessions[project], message, accepted, dry_run=dry_run, wait=wait).apply(each))
        _answer(session, applied)


def _answer(session: Session, applied: Sequence[Applied]) -> None:
    if session.output.as_json:
        session.output.document(applied)
    for each in applied:
        if each.exit_code:
            raise typer.Exit(each.exit_code)


@dataclass(frozen=True)
class Applying:
    """Executes steps through the client. ``wait``: wait until they have taken effect."""

    session: Session
    message: str | None
    accepted: Mapping[str, Any]
    """Arguments of an upgrade: accepted differences."""
    dry_run: bool
    wait: bool

    def apply(self, desired: Desired) -> Applied:
        """Apply one document. Errors of one application are recorded in the result, and the next document is applied.

        Raises errors that concern all applications: ``CatalogUnavailable``, ``Unauthenticated``.
        """
        applied = Applied(name=desired.application.name)
        try:
            self._apply(desired, applied)
        except (CatalogUnavailable, Unauthenticated):
            raise
        except EpochalError as error:
            applied.error, applied.exit_code = sentence(error), int(exit_code(error))
        self._print(applied)
        return applied

    def _apply(self, desired: Desired, applied: Applied) -> None:
        now, artifact = self._now(applied.name), desired.sha256()
        plan = steps(now, desired.application, artifact)
        applied.changes, applied.version = list(plan.changes), None if now is None else now.version
        if any(self.accepted.values()) and "upgrade" not in plan.verbs:
            raise InvalidInput(
                "The application is not upgraded, so there is no difference to accept. Omit --accept-changed and "
                "--accept-partial."
            )
        if self.dry_run:
            applied.actions = [_DONE[verb] for verb in plan.verbs]
            return
        if now is None:
            self._create(desired, applied)
            return
        if now.artifact != artifact and desired.code is not None:
            self.session.client.artifacts.upload(desired.code)
        if now.state == "stopping" and plan.verbs:
            with self.session.output.busy(f"Waiting for {now.name} to stop"):
                now = self.session.client.applications.wait(now.name, "ended")
            plan = steps(now, desired.application, artifact)
        for number, verb in enumerate(plan.verbs):
            # A later verb needs the effect of the previous one and must not overwrite a concurrent change.
            if number:
                now = self.session.client.applications.get(now.name)
            operation = self._do(verb, now, desired, plan, artifact, applied)
            if operation is not None and (self.wait or number + 1 < len(plan.verbs)):
                self.session.wait(operation, f"Applying {now.name}")
            applied.actions.append(_DONE[verb])

    def _now(self, name: str) -> Application | None:
        try:
            return self.session.client.applications.get(name)
        except NotFound:
            return None

    def _create(self, desired: Desired, applied: Applied) -> None:
        client, application = self.session.client, desired.application
        if desired.code is not None:
            client.artifacts.upload(desired.code)
        created = client.applications.create(
            application.name,
            desired.sha256(),
            parameters=application.parameters,
            configuration=application.configuration.stored(),
            start=application.state == "running",
        )
        applied.actions.append("created")
        applied.version = created.version
        if application.state == "running":
            if self.wait:
                self.session.wait_until_running(application.name)
            applied.actions.append("started")

    def _do(
        self, verb: Verb, now: Application, desired: Desired, plan: Steps, artifact: str, applied: Applied
    ) -> Operation | None:
        """Apply a verb to the application at the revision that was read. ``None``: no operation to wait for."""
        applications, versions = self.session.client.applications, self.session.client.application(now.name).versions
        seen, operation = now.revision, None
        match verb:
            case "upgrade":
                version = versions.create(
                    artifact,
                    parameters=desired.application.parameters,
                    configuration=plan.configuration.stored(),
                    message=self.message,
                    if_match=seen,
                    **self.accepted,
                )
                applied.version = version.number
                operation = None if version.operation is None else self.session.client.operations.get(version.operation)
            case "rescale":
                operators = {
                    change.path.removeprefix(NUMBERS): change.after
                    for change in plan.changes
                    if change.path.startswith(NUMBERS)
                }
                number = plan.configuration.parallelism
                operation = versions.rescale(number, operators=operators, message=self.message, if_match=seen)
                applied.version = versions.list(limit=1)[0].number
            case "start":
                operation = applications.start(now.name, if_match=seen)
            case "stop":
                operation = applications.stop(now.name, if_match=seen)
        return operation

    def _print(self, applied: Applied) -> None:
        """Print one line for each application when it has been processed."""
        if self.session.output.as_json:
            return
        said = [self._in_words(action, applied) for action in applied.actions]
        if said or not applied.error:
            line = f"{applied.name}: {', '.join(said) or 'unchanged'}"
            self.session.output.results.print(Text(f"{line} (dry run)" if self.dry_run else line), soft_wrap=True)
        for change in applied.changes:
            self.session.output.results.print(Text(f"  {_shown(change)}", style="dim"), soft_wrap=True)
        if applied.error:
            error = Text.assemble(("error: ", "bold red"), f"{applied.name}: {applied.error}")
            self.session.output.notes.print(error, soft_wrap=True)

    def _in_words(self, action: str, applied: Applied) -> str:
        """``upgraded to version 3``, ``rescaled to 4``."""
        if action == "rescaled":
            numbers = (
                f"{change.path.removeprefix(NUMBERS)} {change.after or 'default'}"
                if change.path.startswith(NUMBERS)
                else str(change.after)
                for change in applied.changes
            )
            return f"rescaled to {', '.join(numbers)}"
        numbered = action == "upgraded" and not self.dry_run
        return f"upgraded to version {applied.version}" if numbered else action


def _shown(change: Change) -> str:
    """``parameters.limit 10 → 15``."""
    if change.path == "code":
        return f"code {formatting.code(change.before)} → {formatting.code(change.after)}"
    return f"{change.path} {formatting.difference(change.before, change.after)}"
