"""Rollback: look at the plan, then confirm it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from epochal.client.models import Operation, RollbackPlan
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.wire.bodies import read


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
    ) -> RollbackPlan:
        """What would happen; nothing is changed. Raises ``NotFound``, ``SnapshotExpired``."""
        body = _body(epoch, savepoint, tag, at, move_aside)
        return read(RollbackPlan, self._transport.query(self._path, {**body, "dry_run": True}))

    def to(
        self,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
        move_aside: bool = False,
        message: str | None = None,
        confirm: str | None = None,
    ) -> Operation:
        """Roll back; a running application is stopped, and started again. ``confirm`` is the plan's.

        Raises ``Conflict`` (``rollback-not-confirmed``) when it is missing, or the plan is not true any more.
        """
        body = {**_body(epoch, savepoint, tag, at, move_aside), "message": message, "confirm": confirm}
        return read(Operation, self._transport.post(self._path, body))


def _body(
    epoch: int | None, savepoint: str | None, tag: str | None, at: datetime | None, move_aside: bool
) -> dict[str, Any]:
    moment = None if at is None else at.astimezone().isoformat()
    return {"epoch": epoch, "savepoint": savepoint, "tag": tag, "at": moment, "move_aside": move_aside}
