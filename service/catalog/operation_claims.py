"""Background operations: requested, claimed by one process for a limited time, and ended by the holder of the claim."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from pydantic import BaseModel
from sqlalchemy import Select, literal_column, select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, EpochalError, OperationCancelled
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import announce_operation
from epochal.service.catalog.leases import LockKey, transaction_lock
from epochal.service.catalog.models import Application, Operation
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.catalog.operations import OperationRepository, end, operation_answer, state_of
from epochal.service.catalog.types import database_now, now
from epochal.service.domain.nodes import Node
from epochal.service.domain.operations import (
    LEASE_SECONDS,
    MARGIN_SECONDS,
    ONE_AT_A_TIME,
    Event,
    Interrupted,
    State,
    cancelled,
    is_free,
)
from epochal.wire.operations import OperationAnswer, OperationKind
from epochal.wire.problems import Problem, problem_of

PROGRESS_SECONDS = 1.0

OperationRequest = Callable[[Session], tuple[Application | None, BaseModel]]
"""Run within the transaction that requests an operation; returns its application and its arguments. ``None``: the
operation concerns the whole store, or creates the application named by the argument ``name``."""
HasTerminated = Callable[[str], bool]
"""Predicate: the process named by a claim has certainly ended."""


class Claim:
    """An operation that this process carries out. Thread-safe."""

    def __init__(
        self,
        database: Database,
        holder: str,
        row: Operation,
        asked_at: float,
        is_closing: Callable[[], bool],
        node: Node | None = None,
    ) -> None:
        self.id = row.id
        self.kind = cast(OperationKind, row.kind)
        self.arguments: dict[str, Any] = row.arguments
        self._database = database
        self._holder = holder
        self._node = node
        self._is_closing = is_closing
        self._cancelled = threading.Event()
        if row.cancel_requested_at is not None:
            self._cancelled.set()
        self._held_until = _held_until(asked_at)
        self._said_at = 0.0

    @property
    def is_cancelled(self) -> bool:
        """Return whether cancellation was requested."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Make a cancellation that is recorded in the catalog known before the next renewal."""
        self._cancelled.set()

    def check(self) -> None:
        """Called frequently by the work. Raises ``OperationCancelled`` or ``Interrupted`` when it has to end."""
        if self._is_closing():
            raise Interrupted("the control plane is stopping")
        if time.monotonic() >= self._held_until:
            raise Interrupted(f"the claim on {self.kind} {self.id} could not be renewed")
        if self.is_cancelled:
            raise OperationCancelled(f"The {self.kind} was cancelled.")

    def progress(self, text: str) -> None:
        """Like :meth:`check`. Also stores ``text`` as the progress, at most once a second."""
        self.check()
        if time.monotonic() - self._said_at < PROGRESS_SECONDS:
            return
        self._said_at = time.monotonic()
        with self._database.writing() as session:
            self._held(session).progress = text

    def renew(self) -> None:
        """Raises ``Interrupted`` if another process holds the claim."""
        asked_at = time.monotonic()
        with self._database.writing() as session:
            row = self._held(session)
            row.claim_until = database_now(session) + timedelta(seconds=LEASE_SECONDS)
            if row.cancel_requested_at is not None:
                self._cancelled.set()
        self._held_until = _held_until(asked_at)

    def release(self, progress: str = "waiting to be restarted") -> None:
        """Give up the claim, so that another process can take over immediately."""
        with self._database.writing() as session:
            row = self._held(session)
            row.claim_holder = row.claim_until = None
            row.progress = progress

    def leave_to_others(self, why: str) -> Sequence[str] | None:
        """Record that this node has no space for the operation. The claim is released for a control plane that has not
        tried it. If there is none, the claim is kept, and the names of the nodes that tried it are returned. Raises
        ``Interrupted``."""
        with self._database.writing() as session:
            row = self._held(session)
            here = {} if self._node is None else {self._node.id: _called(self._node)}
            row.without_room = {**(row.without_room or {}), **here}
            if not _untried(session, row):
                return list(row.without_room.values())
            row.claim_holder = row.claim_until = None
            row.progress = f"waiting for another control plane: {why}"
        return None

    def decide(self, session: Session) -> Operation:
        """The locked row, to be ended in this transaction. Raises ``OperationCancelled``, ``Interrupted``."""
        row = self._held(session)
        if state_of(row) is State.CANCELLING:
            self._cancelled.set()
            raise OperationCancelled(f"The {self.kind} was cancelled.")
        return row

    def succeed(self, result: BaseModel) -> None:
        """Raises ``OperationCancelled``, ``Interrupted``."""
        with self._database.writing() as session:
            row = self.decide(session)
            end(row, Event.SUCCEED, result=result.model_dump(mode="json"))
            _announce(session, row)

    def fail(self, error: EpochalError) -> None:
        """Raises ``Interrupted``."""
        self._end(Event.FAIL, problem_of(error))

    def swept(self) -> None:
        """End a cancelled operation whose files are cleaned up. Raises ``Interrupted``."""
        with self._database.reading() as session:
            by = session.get_one(Operation, self.id).cancel_requested_by
        self._end(Event.SWEEP, problem_of(OperationCancelled(f"The {self.kind} was cancelled by {by}.")))

    def _end(self, event: Event, error: Problem) -> None:
        with self._database.writing() as session:
            row = self._held(session)
            end(row, event, error=error)
            _announce(session, row)

    def _held(self, session: Session) -> Operation:
        row = session.get_one(Operation, self.id, with_for_update=True, populate_existing=True)
        if row.state != "running" or row.claim_holder != self._holder:
            self._held_until = 0.0
            raise Interrupted(f"this process no longer holds the claim on {self.kind} {self.id}")
        return row


class OperationClaims:
    """Background operations of one process. ``holder`` identifies it in claims. ``node``: its control plane; ``None``
    for a process that is not registered as a node."""

    def __init__(
        self,
        database: Database,
        holder: str,
        has_terminated: HasTerminated,
        is_closing: Callable[[], bool],
        node: Node | None = None,
    ) -> None:
        self._database = database
        self._holder = holder
        self._node = node
        self._has_terminated = has_terminated
        self._is_closing = is_closing

    def begin(self, kind: OperationKind, by: str, request: OperationRequest, project: str) -> OperationAnswer:
        """Raises the errors of ``request``, and ``Conflict`` if a conflicting operation runs on the store."""
        with self._database.writing() as session:
            application, arguments = request(session)
            check_store_free(session, kind)
            encoded = arguments.model_dump(mode="json")
            row = OperationRepository(session).add(kind, application, None, encoded, by, "waiting", project)
            return _announce(session, row)

    def claim(self, kinds: Collection[OperationKind]) -> Claim | None:
        """Claim the oldest free operation of these kinds. A process runs one operation of each kind at a time."""
        for row in self._free(kinds):
            claim = self._claim(row.id, row.kind)
            if claim is not None:
                return claim
        return None

    def waiting(self, kinds: Collection[OperationKind]) -> set[OperationKind]:
        """Kinds with an operation that no process carries out."""
        return {cast(OperationKind, row.kind) for row in self._free(kinds) if row.claim_holder != self._holder}

    def _free(self, kinds: Collection[OperationKind]) -> list[Operation]:
        """Listed oldest first."""
        with self._database.reading() as session:
            moment = database_now(session)
            rows = session.scalars(_running(kinds)).all()
            return [row for row in rows if self._is_free(row, moment) and not self._is_for_others(session, row)]

    def _claim(self, id: str, kind: str) -> Claim | None:
        """Locks a single row, so that concurrent claims of other operations do not wait."""
        asked_at = time.monotonic()
        with self._database.writing() as session:
            row = self._locked(session, id, kind)
            moment = database_now(session)
            if row is None or not self._is_free(row, moment) or self._is_for_others(session, row):
                return None
            row.claim_holder, row.claim_until = self._holder, moment + timedelta(seconds=LEASE_SECONDS)
            return Claim(self._database, self._holder, row, asked_at, self._is_closing, self._node)

    def cancel(self, id: str, by: str) -> OperationAnswer:
        """Request the cancellation; the holder of the claim carries it out. Raises ``NotFound``, ``Conflict``."""
        with self._database.writing() as session:
            row = OperationRepository(session).locked(id)
            state = cancelled(cast(OperationKind, row.kind), id, state_of(row))
            if state is State.CANCELLING and row.cancel_requested_at is None:
                row.cancel_requested_at, row.cancel_requested_by = now(), by
                row.progress = "being cancelled"
            return _announce(session, row)

    def _locked(self, session: Session, id: str, kind: str) -> Operation | None:
        """The operation, if it is running and no other process is claiming it."""
        if kind not in ONE_AT_A_TIME:
            query = select(Operation).where(Operation.id == id, Operation.state == "running")
            return session.scalars(query.with_for_update(skip_locked=True)).first()
        # Waits for concurrent claims instead of skipping their rows, so that they are seen.
        rows = session.scalars(_running([kind]).with_for_update().execution_options(populate_existing=True)).all()
        moment = database_now(session)
        if not all(self._is_free(row, moment) for row in rows):
            return None
        return next((row for row in rows if row.id == id), None)

    def _is_free(self, row: Operation, moment: datetime) -> bool:
        return is_free(row.claim_holder, row.claim_until, moment, self._holder, self._has_terminated)

    def _is_for_others(self, session: Session, row: Operation) -> bool:
        """Return whether this node had no space for it and another node has not tried it."""
        tried = self._node is not None and self._node.id in (row.without_room or {})
        return tried and _untried(session, row)


def check_store_free(session: Session, kind: OperationKind) -> None:
    """Exclusion of operations on the store. No files are deleted during a verification or a backup, nor during an
    import, whose files are not yet referred to. Backups are not pruned while one is created. Raises ``Conflict`` naming
    the running operation."""
    disturbing = {
        "collect": ("collect", "verify", "import", "backup"),
        "verify": ("collect", "verify"),
        "import": ("collect",),
        "backup": ("collect", "backup", "prune"),
        "prune": ("backup", "prune"),
    }
    if kind not in disturbing:
        return
    transaction_lock(session, LockKey.STORE)  # another control plane may be about to begin an operation
    query = select(Operation).where(Operation.kind.in_(disturbing[kind]), Operation.state == "running")
    running = session.scalars(query.limit(1)).first()
    if running is not None:
        raise Conflict(
            f"An operation on the store is running: {running.kind} {running.id}, since "
            f"{running.created_at:%Y-%m-%dT%H:%M:%SZ}. Wait until it has ended."
        )


def _running(kinds: Collection[str]) -> Select[Operation]:
    running = Operation.state == literal_column("'running'")  # a literal, to match the condition of the partial index
    return select(Operation).where(running, Operation.kind.in_(sorted(kinds))).order_by(Operation.id)


def _announce(session: Session, row: Operation) -> OperationAnswer:
    name = OperationRepository(session).application_name(row)
    announce_operation(session, name, row)
    return operation_answer(row, name)


def _untried(session: Session, row: Operation) -> bool:
    """Return whether a living control plane has not tried it for lack of space."""
    living = {node.id for node in NodeRepository(session).living() if node.role == "control"}
    return not living <= (row.without_room or {}).keys()


def _called(node: Node) -> str:
    return f"{node.host} ({node.public_url})"


def _held_until(asked_at: float) -> float:
    """By this process's monotonic clock, measured before the claim was requested, and therefore earlier than the
    claim's end by the database clock."""
    return asked_at + LEASE_SECONDS - MARGIN_SECONDS
