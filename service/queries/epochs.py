from __future__ import annotations

from epochal.contracts.catalog import EpochRecord, EpochState
from epochal.engine.epoch import State
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.records import epoch_record
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.domain.pages import PageRequest
from epochal.wire.epochs import EpochPage, FoldedRange


class EpochService:
    """An epoch and its snapshot are one row; the snapshots' repository reads both."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, application: str, page: PageRequest, state: EpochState | None) -> EpochPage:
        states = list(State) if state is None else [State(state)]
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            repository = SnapshotRepository(session)
            part = repository.page(row, page, states)
            folded = repository.folded(row, part, page) if State.COMMITTED in states else []
            return EpochPage(
                items=[epoch_record(item) for item in part.rows],
                next_cursor=part.next_cursor,
                folded=[FoldedRange.model_validate(range, from_attributes=True) for range in folded],
            )

    def get(self, application: str, epoch: int) -> EpochRecord:
        with self._database.reading() as session:
            row = ApplicationRepository(session).named(application)
            return epoch_record(SnapshotRepository(session).epoch(row, epoch))
