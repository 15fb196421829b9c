"""Versions of an application: upgrade, rescale, preflight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epochal.client.applications import BUILD_SECONDS
from epochal.client.models import Operation, Preflight, Version
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.wire.bodies import read
from epochal.wire.versions import accepted


class Versions:
    """``client.application(name).versions``. What is not given stays as it is in the latest version."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name

    def list(self, limit: int | None = None) -> list[Version]:
        """Newest first."""
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
        """An upgrade: of a running application at an epoch boundary (``operation`` tells when), else its next start's.

        ``parameters`` and ``configuration`` replace the present ones whole. ``accept_changed`` and ``accept_partial``
        name operators and columns (``totals``, ``totals.lo``) that may mean something else than before, and added
        aggregate columns that may count later rows only; they hold for this upgrade.

        Raises ``IncompatibleState`` when the state that is there could not be gone on from, ``Conflict`` while another
        operation is under way, ``PreconditionFailed`` when the application is no longer at the revision ``if_match``.
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

    def rescale(self, parallelism: int, *, message: str | None = None, if_match: str | None = None) -> Operation:
        """Other parallelism, without a restart. Raises ``OptionError`` above ``max_parallelism``, ``Conflict``."""
        body = {"parallelism": parallelism, "message": message}
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
        """Other key groups, for an application that is stopped: its state is written anew, which takes its time.

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
        """What an upgrade would keep, add, lose, and be refused for; nothing is changed.

        ``configuration`` is merged over the present one.
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
        """A preflight that also runs the last so many ``epochs`` again, in shadow, and compares what comes out.

        When the operation has succeeded, ``read(Preflight, operation.result)`` is the report: both are names of
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
