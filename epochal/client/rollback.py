"""Rollback: look at the plan, then confirm it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from epochal.client.models import Operation, RollbackPlan
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.wire.bodies import read
from epochal.wire.versions import accepted


class Rollback:
    """``client.application(name).rollback``. One of ``epoch``, ``savepoint``, ``tag`` and ``at`` says where to."""

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
        """What would happen; nothing is changed. Raises ``NotFound``, ``SnapshotExpired``."""
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
        """Roll back; a running application is stopped, and started again. ``confirm`` is the plan's.

        The latest version goes on from the snapshot; ``accept_changed`` and ``accept_partial`` as in an upgrade.

        Raises ``Conflict`` (``rollback-not-confirmed``) when it is missing, or the plan is not true any more.
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
