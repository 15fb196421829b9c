"""Operations on the whole store: one at a time, whose process says from time to time that it is still at it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Operation
from epochal.service.catalog.types import now
from epochal.service.operations.repository import OperationRepository
from epochal.service.problems import problem_of

StoreOperationKind = Literal["collect", "verify"]

BEAT_SECONDS = 2.0
GONE_AFTER = timedelta(seconds=60)
"""Without a beat for so long, the process that carried it out is gone; what it left undone is done by the next."""


class StoreOperations:
    """Begins them, and writes down how they go."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._process = secrets.token_hex(8)

    def begin(self, kind: StoreOperationKind, request: dict[str, Any], by: str) -> Operation:
        """Raises ``Conflict`` naming the one under way."""
        with self._database.writing() as session:
            _end_those_gone(session)
            _check_none(session, _running())
            if kind == "collect":  # an import writes files that nothing names yet, some of which may be there already
                _check_none(session, select(Operation).where(Operation.kind == "import", Operation.state == "running"))
            arguments = {**request, "process": self._process, "beat": now().isoformat()}
            return OperationRepository(session).add(kind, None, None, arguments, by, "waiting for its turn")

    def reporter(self, id: str) -> Callable[[str], None]:
        """Takes lines of progress, and writes some of them down."""
        last = 0.0

        def report(said: str) -> None:
            nonlocal last
            if time.monotonic() - last >= BEAT_SECONDS:
                last = time.monotonic()
                self._update(id, progress=said)

        return report

    def succeeded(self, id: str, result: dict[str, Any]) -> None:
        self._update(id, state="succeeded", result=result, progress=None, finished_at=now())

    def failed(self, id: str, error: EpochalError) -> None:
        problem = problem_of(error).model_dump(mode="json", exclude_none=True)
        self._update(id, state="failed", error=problem, progress=None, finished_at=now())

    def _update(self, id: str, **values: Any) -> None:
        with self._database.writing() as session:
            row = session.get_one(Operation, id)
            for name, value in values.items():
                setattr(row, name, value)
            row.arguments = {**row.arguments, "beat": now().isoformat()}


def check_not_collecting(session: Session) -> None:
    """Raises ``Conflict``. For what writes to the store beside epochs: an import."""
    _end_those_gone(session)
    _check_none(session, select(Operation).where(Operation.kind == "collect", Operation.state == "running"))


def _check_none(session: Session, query: Any) -> None:
    running = session.scalars(query.limit(1)).first()
    if running is not None:
        raise Conflict(
            f"The store is being worked on: operation {running.kind} {running.id}, since "
            f"{running.created_at:%Y-%m-%dT%H:%M:%SZ}. Wait for its end."
        )


def _running() -> Any:
    return select(Operation).where(Operation.kind.in_(["collect", "verify"]), Operation.state == "running")


def _end_those_gone(session: Session) -> None:
    for row in session.scalars(_running()).all():
        if datetime.fromisoformat(row.arguments["beat"]) < now() - GONE_AFTER:
            row.state, row.finished_at = "failed", now()
            gone = EpochalError("The control plane that carried it out is gone; what it left, the next one does.")
            row.error = problem_of(gone).model_dump(mode="json", exclude_none=True)
    session.flush()
