"""Operations on the whole store: one at a time, whose process says from time to time that it is still at it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operations import OperationRepository
from epochal.service.catalog.types import now
from epochal.wire.problems import problem_of

StoreOperationKind = Literal["collect", "verify"]

BEAT_SECONDS = 2.0
GONE_AFTER = timedelta(seconds=60)
"""Without a beat for so long, the process that carried it out is gone; what it left undone is done by the next."""

RELEASED = datetime(1970, 1, 1, tzinfo=UTC)
"""The beat of an operation that its process has let go of."""
_BOOKKEEPING = ("process", "beat")


@dataclass(frozen=True)
class StoreOrder:
    """An operation to be carried out by this process; ``request``: what was asked for, as JSON."""

    id: str
    kind: StoreOperationKind
    request: dict[str, Any]


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

    def take_over(self) -> StoreOrder | None:
        """One whose process is gone or has released it, to be carried out again by this process, from the beginning."""
        with self._database.reading() as session:
            if not _gone(session):
                return None
        with self._database.writing() as session:
            for row in _gone(session):
                row.arguments = {**row.arguments, "process": self._process, "beat": now().isoformat()}
                row.progress = "begun again: the control plane that carried it out is gone"
                return order_of(row)
        return None

    def release(self, id: str) -> None:
        """This process ends in order: whoever comes next need not wait until it is taken for gone."""
        self._update(id, beat=RELEASED, progress="waiting for the next control plane")

    def reporter(self, id: str) -> Callable[[str], None]:
        """Takes lines of progress, and writes some of them down."""
        last = 0.0

        def report(said: str) -> None:
            nonlocal last
            if time.monotonic() - last >= BEAT_SECONDS:
                last = time.monotonic()
                self._update(id, progress=said)

        return report

    def beat(self, id: str) -> None:
        """This process is still at it."""
        self._update(id)

    def succeeded(self, id: str, result: dict[str, Any]) -> None:
        self._update(id, state="succeeded", result=result, progress=None, finished_at=now())

    def failed(self, id: str, error: EpochalError) -> None:
        problem = problem_of(error).model_dump(mode="json", exclude_none=True)
        self._update(id, state="failed", error=problem, progress=None, finished_at=now())

    def _update(self, id: str, beat: datetime | None = None, **values: Any) -> None:
        """Raises ``Conflict`` when this process has been taken for gone: another one has ended it, or carries it on."""
        with self._database.writing() as session:
            row = session.get_one(Operation, id, with_for_update=True)
            if row.state != "running" or row.arguments["process"] != self._process:
                raise Conflict(f"Operation {row.kind} {id} was not heard of for {GONE_AFTER}, and is no longer ours.")
            for name, value in values.items():
                setattr(row, name, value)
            row.arguments = {**row.arguments, "beat": (beat or now()).isoformat()}


def order_of(row: Operation) -> StoreOrder:
    request = {name: value for name, value in row.arguments.items() if name not in _BOOKKEEPING}
    return StoreOrder(row.id, cast(StoreOperationKind, row.kind), request)


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


def _gone(session: Session) -> list[Operation]:
    rows = session.scalars(_running().order_by(Operation.id).with_for_update()).all()
    return [row for row in rows if datetime.fromisoformat(row.arguments["beat"]) < now() - GONE_AFTER]


def _end_those_gone(session: Session) -> None:
    for row in _gone(session):
        row.state, row.finished_at = "failed", now()
        gone = EpochalError("The control plane that carried it out is gone; what it left, the next one does.")
        row.error = problem_of(gone).model_dump(mode="json", exclude_none=True)
    session.flush()
