"""Applications: create, list, start, stop, restart, fork, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from epochal.client.copies import copied_into
from epochal.client.models import Application, ApplicationState, Operation
from epochal.client.paths import path
from epochal.client.polling import poll
from epochal.client.state_exchanges import zoned
from epochal.client.transport import Transport
from epochal.errors import EpochalError, OptionError
from epochal.wire.bodies import read
from epochal.wire.projects import is_project, local_name, project_of
from epochal.wire.versions import accepted

# Building and analysing a pipeline starts a Spark session in a process of its own.
BUILD_SECONDS = 180.0


class Applications:
    """``client.applications``. Calls that take long answer with an operation: give it to ``client.operations.wait``.

    ``if_match``: a revision (:attr:`Application.revision`). The change is made only when the application is still at
    it; otherwise ``PreconditionFailed`` says what has changed.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        name: str,
        artifact: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        start: bool = True,
        available_now: bool = False,
        drain: bool = True,
    ) -> Application:
        """A new application on a registered artifact (its sha256). It is built and analysed first.

        ``available_now``: the start that this makes takes what the sources have by then, and ends. ``drain``: when all
        sources are bounded and at their end, a last epoch brings out everything that waits, and nothing can follow.

        Raises ``NameTaken``, ``PipelineError``, ``ParameterError``, ``OptionError``.
        """
        body = {
            "name": name,
            "artifact": artifact,
            "parameters": dict(parameters or {}),
            "configuration": dict(configuration or {}),
            "start": start,
            "available_now": available_now,
            "drain": drain,
        }
        return read(Application, self._transport.post("/v1/applications", body, timeout_seconds=BUILD_SECONDS))

    def get(self, name: str) -> Application:
        return read(Application, self._transport.get(path("applications", name)))

    def list(self, limit: int | None = None) -> list[Application]:
        return self._transport.pages("/v1/applications", Application, limit)

    def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Delete a stopped application. Raises ``Conflict`` when it runs."""
        self._transport.delete(path("applications", name), if_match)

    def start(
        self,
        name: str,
        savepoint: str | None = None,
        *,
        available_now: bool = False,
        drain: bool = True,
        if_match: str | None = None,
    ) -> Operation:
        """Start from the head, or from a savepoint; succeeds when the driver runs. Result: ``{execution, attempt}``.

        ``available_now``: take what the sources have at the start, and end; see :meth:`wait_until_ended`. ``drain`` as
        for :meth:`create`. Raises ``IncompatibleState`` when it is drained.
        """
        body = {"savepoint": savepoint, "available_now": available_now, "drain": drain}
        return self._operation(name, "start", body, if_match)

    def stop(self, name: str, savepoint: str | None = None, *, if_match: str | None = None) -> Operation:
        """Stop at an epoch boundary, with a savepoint if one is named. Result: ``{branch, epoch, savepoint}``."""
        return self._operation(name, "stop", {"savepoint": savepoint}, if_match)

    def restart(self, name: str, *, if_match: str | None = None) -> Operation:
        return self._operation(name, "restart", {}, if_match)

    def fork(
        self,
        source: str,
        name: str,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        parameters: Mapping[str, Any] | None = None,
        artifact: str | None = None,
        configuration: Mapping[str, Any] | None = None,
        shadow: bool = False,
        start: bool = True,
        message: str | None = None,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
        into: str | None = None,
    ) -> Application:
        """A new application on a snapshot of ``source``; no byte of state is copied.

        One of ``epoch``, ``savepoint``, ``tag`` and ``at`` (the latest snapshot at that time) says which; default: its
        head. ``parameters`` are merged over the source's. Raises ``Conflict`` when a sink target is the source's own
        and the fork is not ``shadow`` (without sinks). ``accept_changed`` and ``accept_partial`` as in an upgrade.

        ``into``: another project. The fork is a copy then, by an export here and an import there, with the roles that
        these need and the errors that they raise; neither ``at`` nor ``artifact`` can be said (``OptionError``).
        """
        home = project_of(source) if "." in source else self._transport.location.project
        if into is not None and into != home:
            _check_copy(into, at, artifact)
            return copied_into(
                self._transport.of_project(home),
                local_name(source),
                self._transport.of_project(into),
                name,
                epoch=epoch,
                savepoint=savepoint,
                tag=tag,
                parameters=parameters,
                configuration=configuration,
                shadow=shadow,
                start=start,
                message=message,
                accept_changed=accept_changed,
                accept_partial=accept_partial,
            )
        body = {
            "name": name,
            "epoch": epoch,
            "savepoint": savepoint,
            "tag": tag,
            "at": None if at is None else zoned(at),
            "parameters": None if parameters is None else dict(parameters),
            "artifact": artifact,
            "configuration": None if configuration is None else dict(configuration),
            "shadow": shadow,
            "start": start,
            "message": message,
            "acceptance": accepted(accept_changed, accept_partial),
        }
        answer = self._transport.post(path("applications", source, "fork"), body, timeout_seconds=BUILD_SECONDS)
        return read(Application, answer)

    def wait_until_running(
        self,
        name: str,
        on_progress: Callable[[Application], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> Application:
        """Wait until an application that was created with ``start`` runs (or, bounded, has already ended).

        Raises ``EpochalError`` with the reason when it fails, ``NotYetCommitted`` when ``timeout_seconds`` are over.
        """
        return self._wait(name, _in("created", "starting"), "to run", on_progress, timeout_seconds)

    def wait_until_ended(
        self,
        name: str,
        on_progress: Callable[[Application], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> Application:
        """Wait until a started application has stopped: because it was asked to, or because its sources have ended.

        Raises ``EpochalError`` with the reason when it fails, ``NotYetCommitted`` when ``timeout_seconds`` are over.
        """
        runs = _in("created", "starting", "running", "stopping")
        return self._wait(name, runs, "to end", on_progress, timeout_seconds)

    def wait_until_committed(
        self,
        name: str,
        on_progress: Callable[[Application], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> Application:
        """Wait until a started application has committed its first epoch, or has ended without one.

        Raises ``EpochalError`` with the reason when it fails, ``NotYetCommitted`` when ``timeout_seconds`` are over.
        """
        runs = _in("starting", "running", "stopping")
        return self._wait(
            name, lambda now: now.head is None and runs(now), "to commit an epoch", on_progress, timeout_seconds
        )

    def _wait(
        self,
        name: str,
        waits: Callable[[Application], bool],
        what: str,
        on_progress: Callable[[Application], None] | None,
        timeout_seconds: float | None,
    ) -> Application:
        seen = poll(
            self.get(name),
            lambda: self.get(name),
            until=lambda now: not waits(now),
            on_progress=on_progress,
            timeout_seconds=timeout_seconds,
            what=f"application {name} {what}",
        )
        if seen.state == "failed":
            reason = "without a reason" if seen.failure is None else seen.failure.message
            raise EpochalError(f"Application {name} failed: {reason}")
        return seen

    def _operation(self, name: str, verb: str, body: Mapping[str, Any], if_match: str | None) -> Operation:
        return read(Operation, self._transport.post(path("applications", name, verb), body, if_match=if_match))


def _check_copy(into: str, at: datetime | None, artifact: str | None) -> None:
    if not is_project(into):
        raise OptionError(f"{into!r} is no name of a project; `epochal project list` says which there are.")
    if at is not None:
        raise OptionError("A fork into another project is of an epoch, a savepoint or a tag, not of a time.")
    if artifact is not None:
        raise OptionError(
            "A fork into another project has the code of its source. Make it without start, and upgrade it there."
        )


def _in(*states: ApplicationState) -> Callable[[Application], bool]:
    return lambda now: now.state in states
