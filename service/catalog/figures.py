from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from epochal.contracts.catalog import ShownWatermarks
from epochal.engine.epoch import State
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.models import Application, Branch, Epoch, LeftOut

_APPLICATION_STATES = ("created", "starting", "running", "stopping", "stopped", "failed")


class CountRepository:
    """Every state is there, also with none in it: a series that is missing looks like one that is broken."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def applications(self) -> Mapping[str, int]:
        return {**dict.fromkeys(_APPLICATION_STATES, 0), **ApplicationRepository(self._session).count_by_state()}

    def epochs(self) -> Mapping[str, int]:
        """Read from counters and from an index, by branch: history is never counted again."""
        counted = {
            State.STARTED: _unfinished(State.STARTED),
            State.PREPARED: _unfinished(State.PREPARED),
            State.COMMITTED: Branch.committed_epochs,
            State.ABORTED: Branch.aborted_epochs,
        }
        row = self._session.execute(select(*(func.coalesce(func.sum(counted[state]), 0) for state in State))).one()
        return {state.value: int(count) for state, count in zip(State, row, strict=True)}

    def left_out(self) -> Iterator[tuple[str, str, str, int]]:
        """Application, kind, place and how many, of all that an application ever committed, on whatever branch.

        A place that left nothing out is there with 0."""
        totals = (
            select(Application.name, LeftOut.kind, LeftOut.place, func.sum(LeftOut.total))
            .join(Branch, Branch.id == LeftOut.branch)
            .join(Application, Application.id == Branch.application)
            .where(Application.deleted_at.is_(None))
            .group_by(Application.name, LeftOut.kind, LeftOut.place)
        )
        found = {(name, kind, place): 0 for name, place, _ in self._marks() for kind in ("late", "rejected")}
        for name, kind, place, total in self._session.execute(totals):
            found[name, kind, place] = int(total)
        for key, total in found.items():
            yield *key, total

    def watermarks(self) -> Iterator[tuple[str, str, datetime]]:
        """Application, place and ``fire`` of the heads; not of places that know none, or have ended."""
        for name, place, marks in self._marks():
            if marks.fire is not None:
                yield name, place, marks.fire

    def _marks(self) -> Iterator[tuple[str, str, ShownWatermarks]]:
        heads = (
            select(Application.name, Epoch.watermarks)
            .join(Branch, Branch.id == Application.branch)
            .join(Epoch, (Epoch.branch == Branch.head_branch) & (Epoch.epoch == Branch.head_epoch))
            .where(Application.deleted_at.is_(None))
        )
        for name, watermarks in self._session.execute(heads):
            for place, said in (watermarks or {}).items():
                yield name, place, ShownWatermarks.model_validate(said)


def _unfinished(state: State) -> ColumnElement[int]:
    found = select(func.count()).where(Epoch.branch == Branch.id, Epoch.state == state.value)
    return found.correlate(Branch).scalar_subquery()
