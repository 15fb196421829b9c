"""Executions of an application and their epochs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Final, cast

from epochal.contracts.catalog import EpochRecord, EpochState, ManifestReference
from epochal.engine.epoch import State
from epochal.errors import EpochalError, StoreUnavailable
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.executions import ExecutionRepository
from epochal.service.catalog.models import Application, Execution
from epochal.service.catalog.records import epoch_record, failure_of
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.catalog.versions import VersionRepository
from epochal.service.domain.pages import PageRequest
from epochal.snapshots.store import SnapshotStore
from epochal.wire.applications import AttemptAnswer, AttemptState, ExecutionAnswer, ExecutionState, StatusAnswer
from epochal.wire.bodies import Page
from epochal.wire.snapshots import EpochPage, FoldedRange


class ExecutionService:
    """Read side of executions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, application: str, page: PageRequest) -> Page[ExecutionAnswer]:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            part = ExecutionRepository(session).page(row, page)
            items = [_answer(session, application, item) for item in part.rows]
            return Page(items=items, next_cursor=part.next_cursor)

    def get(self, application: str, id: str) -> ExecutionAnswer:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            return _answer(session, application, ExecutionRepository(session).of(row, id))

    def latest(self, application: str) -> ExecutionAnswer | None:
        """The execution whose state is the application's; ``None`` if it was never started. Raises ``NotFound``."""
        with self._database.reading() as session:
            applications = ApplicationRepository(session)
            execution = applications.execution(applications.named(application))
            return None if execution is None else _answer(session, application, execution)

    def with_attempt(self, application: str, number: int, branch: str | None) -> ExecutionAnswer | None:
        """The newest execution with this attempt, on ``branch`` if given. Raises ``NotFound``."""
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            execution = ExecutionRepository(session).with_attempt(row, number, branch)
            return None if execution is None else _answer(session, application, execution)


def _answer(session: Session, application: str, row: Execution) -> ExecutionAnswer:
    return ExecutionAnswer(
        id=row.id,
        application=application,
        version=row.version,
        branch=row.branch,
        state=cast(ExecutionState, row.state),
        attempt=row.attempt,
        available_now=row.available_now,
        drain=row.drain,
        status=None if row.status is None else StatusAnswer.model_validate(row.status),
        heartbeat_at=row.heartbeat_at,
        stop_requested_at=row.stop_requested_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempts=[
            AttemptAnswer(
                number=attempt.number,
                state=cast(AttemptState, attempt.state),
                started_at=attempt.started_at,
                ended_at=attempt.ended_at,
                failure=failure_of(attempt.failure),
                process=attempt.process,
            )
            for attempt in ExecutionRepository(session).attempts(row)
        ],
    )


_HEAD_OF_LOOP: Final = "feedback"
"""Type of a node, as in ``epochal.pipeline.description``, which query nodes do not load."""
_READ_AT_ONCE: Final = 8


class EpochService:
    """Read side of epochs. An epoch and its snapshot are one row; the snapshots' repository reads both. Records in
    flight are only in the manifests."""

    def __init__(self, database: Database, store: SnapshotStore) -> None:
        self._database = database
        self._store = store

    def page(self, application: str, page: PageRequest, state: EpochState | None) -> EpochPage:
        states = list(State) if state is None else [State(state)]
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            repository = SnapshotRepository(session)
            part = repository.page(row, page, states)
            folded = repository.folded(row, part, page, states)
            records, has_loops = [epoch_record(item) for item in part.rows], _has_loops(session, row)
        return EpochPage(
            items=self._with_loops(records) if has_loops else records,
            next_cursor=part.next_cursor,
            folded=[FoldedRange.model_validate(range, from_attributes=True) for range in folded],
        )

    def get(self, application: str, epoch: int) -> EpochRecord:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            record, has_loops = epoch_record(SnapshotRepository(session).epoch(row, epoch)), _has_loops(session, row)
        return self._with_loops([record])[0] if has_loops else record

    def _with_loops(self, records: Sequence[EpochRecord]) -> list[EpochRecord]:
        """The records with the number of records in flight after each."""
        manifests = [None if record.collected_at is not None else record.manifest for record in records]
        away = Event()
        with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
            in_flight = list(readers.map(lambda manifest: self._in_flight(manifest, away), manifests))
        return [record.model_copy(update={"in_flight": held}) for record, held in zip(records, in_flight, strict=True)]

    def _in_flight(self, reference: ManifestReference | None, away: Event) -> dict[str, int] | None:
        """``away``: set if the store does not answer; further epochs then do not wait for it."""
        if reference is None or away.is_set():
            return None
        try:
            loops = self._store.read_manifest(reference).loops
        except StoreUnavailable:
            away.set()
            return None
        except EpochalError:
            return None  # list the epochs even if a file is missing
        return {name: held.rows for name, held in loops.items()}


def _has_loops(session: Session, application: Application) -> bool:
    graph: dict[str, Any] = VersionRepository(session).latest(application).graph or {}
    return any(node["type"] == _HEAD_OF_LOOP for node in graph.get("nodes", ()))
