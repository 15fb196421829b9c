from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.engine.epoch import State
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.models import Epoch

_APPLICATION_STATES = ("created", "starting", "running", "stopping", "stopped", "failed")


class CountRepository:
    """Every state is there, also with none in it: a series that is missing looks like one that is broken."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def applications(self) -> Mapping[str, int]:
        return {**dict.fromkeys(_APPLICATION_STATES, 0), **ApplicationRepository(self._session).count_by_state()}

    def epochs(self) -> Mapping[str, int]:
        found = self._session.execute(select(Epoch.state, func.count()).group_by(Epoch.state))
        return {**{state.value: 0 for state in State}, **{row[0]: row[1] for row in found}}
