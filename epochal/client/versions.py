"""Versions of an application: upgrade, rescale, rekey, preflight, rollback; and registered code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from epochal.client.exchanges import BUILD_SECONDS, path
from epochal.client.models import Artifact, ArtifactSource, Operation, Preflight, RollbackPlan, Version
from epochal.client.transport import Transport
from epochal.errors import ArtifactError
from epochal.wire.bodies import read
from epochal.wire.versions import accepted


class Versions:
    """``client.application(name).versions``. Omitted arguments are taken from the latest version."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name

    def list(self, limit: int | None = None) -> list[Version]:
        """Versions, newest first."""
        return self._transport.pages(path("applications", self._name, "versions"), Version, limit)

    def create(
        self,
        artifact: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        message: str | None = None,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
        if_match: str | None = None,
    ) -> Version:
        """Upgrade the application: a running one at an epoch boundary (see ``operation``), a stopped one at its next
        start.

        ``parameters`` and ``configuration`` replace the current ones completely. ``accept_changed``: operators and
        columns (``totals``, ``totals.lo``) whose meaning may change; ``accept_partial``: added aggregate columns that
        may count later rows only. Both apply to this upgrade only.

        Raises ``IncompatibleState`` if the version cannot continue from the state, ``Conflict`` during another
        operation, ``PreconditionFailed`` if the application is not at the revision ``if_match``.
        """
        body = {
            "artifact": artifact,
            "parameters": None if parameters is None else dict(parameters),
            "configuration": None if configuration is None else dict(configuration),
            "message": message,
            "acceptance": accepted(accept_changed, accept_partial),
        }
        answer = self._transport.post(
            path("applications", self._name, "versions"), body, timeout_seconds=BUILD_SECONDS, if_match=if_match
        )
        return read(Version, answer)

    def rescale(
        self,
        parallelism: int | None = None,
        *,
        operators: Mapping[str, int | None] | None = None,
        message: str | None = None,
        if_match: str | None = None,
    ) -> Operation:
        """Change numbers of subtasks without a restart: ``parallelism`` of the application, and those of single
        ``operators``; ``None`` removes the number of an operator.

        Raises ``OptionError`` above ``max_parallelism`` or for an unknown operator, ``Conflict``.
        """
        body = {"parallelism": parallelism, "parallelisms": dict(operators or {}), "message": message}
        return read(
            Operation, self._transport.post(path("applications", self._name, "rescale"), body, if_match=if_match)
        )

    def rekey(
        self,
        max_parallelism: int,
        *,
        parallelism: int | None = None,
        message: str | None = None,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
        if_match: str | None = None,
    ) -> Operation:
        """Change the number of key groups of a stopped application. Its state is rewritten.

        The operation's ``result`` has ``version``, ``branch`` and ``epoch``. Raises ``OptionError``, ``Conflict``.
        """
        body = {
            "max_parallelism": max_parallelism,
            "parallelism": parallelism,
            "message": message,
            "acceptance": accepted(accept_changed, accept_partial),
        }
        return read(Operation, self._transport.post(path("applications", self._name, "rekey"), body, if_match=if_match))

    def preflight(
        self,
        artifact: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        savepoint: str | None = None,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
    ) -> Preflight:
        """Check an upgrade without changes: parts that are kept, added or removed, and reasons of a refusal.

        ``configuration`` is merged over the current one.
        """
        body = self._preflight(
            artifact, parameters, configuration, epoch, savepoint, accepted(accept_changed, accept_partial)
        )
        return read(Preflight, self._transport.query("/v1/preflight", body, timeout_seconds=BUILD_SECONDS))

    def trial(
        self,
        epochs: int,
        artifact: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        savepoint: str | None = None,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
    ) -> Operation:
        """A preflight that also runs the last ``epochs`` epochs again in shadow and compares the results.

        After the operation has succeeded, ``read(Preflight, operation.result)`` is the report; both names are in
        :mod:`epochal.client.models`.
        """
        body = self._preflight(
            artifact, parameters, configuration, epoch, savepoint, accepted(accept_changed, accept_partial)
        )
        return read(Operation, self._transport.post("/v1/preflight", {**body, "trial": epochs}))

    def _preflight(
        self,
        artifact: str | None,
        parameters: Mapping[str, Any] | None,
        configuration: Mapping[str, Any] | None,
        epoch: int | None,
        savepoint: str | None,
        acceptance: dict[str, Any],
    ) -> dict[str, Any]:
        return {
            "application": self._name,
            "artifact": artifact,
            "parameters": None if parameters is None else dict(parameters),
            "configuration": dict(configuration or {}),
            "epoch": epoch,
            "savepoint": savepoint,
            "acceptance": acceptance,
        }


class Rollback:
    """``client.application(name).rollback``. ``epoch``, ``savepoint``, ``tag`` or ``at`` selects the snapshot."""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._path = path("applications", application, "rollback")

    def plan(
        self,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        move_aside: bool = False,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
    ) -> RollbackPlan:
        """The plan of a rollback, without changes. Raises ``NotFound``, ``SnapshotExpired``."""
        body = _body(epoch, savepoint, tag, at, move_aside, accepted(accept_changed, accept_partial))
        return read(RollbackPlan, self._transport.query(self._path, {**body, "dry_run": True}))

    def to(
        self,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        move_aside: bool = False,
        accept_changed: Sequence[str] = (),
        accept_partial: Sequence[str] = (),
        message: str | None = None,
        confirm: str | None = None,
    ) -> Operation:
        """Roll back. A running application is stopped and started again. ``confirm``: the plan's ``confirm``.

        The latest version continues from the snapshot; ``accept_changed`` and ``accept_partial``: as in an upgrade.

        Raises ``Conflict`` (``rollback-not-confirmed``) if ``confirm`` is missing or the plan is outdated.
        """
        body = _body(epoch, savepoint, tag, at, move_aside, accepted(accept_changed, accept_partial))
        body |= {"message": message, "confirm": confirm}
        return read(Operation, self._transport.post(self._path, body))


def _body(
    epoch: int | None,
    savepoint: str | None,
    tag: str | None,
    at: datetime | None,
    move_aside: bool,
    acceptance: dict[str, Any],
) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "savepoint": savepoint,
        "tag": tag,
        "at": None if at is None else at.astimezone().isoformat(),
        "move_aside": move_aside,
        "acceptance": acceptance,
    }


class Artifacts:
    """``client.artifacts``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def upload(self, file: str | Path) -> Artifact:
        """Register a Python file or a zip. The same bytes are the same artifact. Raises ``ArtifactError``."""
        source = Path(file)
        try:
            content = source.read_bytes()
        except OSError as error:
            raise ArtifactError(f"The artifact {source} cannot be read: {error.strerror}; check the path.") from error
        return read(Artifact, self._transport.upload("/v1/artifacts", {"filename": source.name}, content))

    def get(self, sha256: str) -> Artifact:
        return read(Artifact, self._transport.get(path("artifacts", sha256)))

    def source(self, sha256: str, file: str | None = None) -> ArtifactSource:
        """The files of an artifact as texts, or one ``file``; requires the role operator. Files that are not UTF-8, or
        too large, have no text. Raises ``NotFound``."""
        return read(ArtifactSource, self._transport.get(path("artifacts", sha256, "source"), {"file": file}))

    def delete(self, sha256: str) -> None:
        """Delete an artifact that no version uses. Raises ``Conflict``, which lists the versions that use it."""
        self._transport.delete(path("artifacts", sha256))

    def list(self, limit: int | None = None) -> list[Artifact]:
        return self._transport.pages("/v1/artifacts", Artifact, limit)
