"""Catalogs for drivers: one per (execution, attempt) that calls, kept, since what it stands for never changes."""

from __future__ import annotations

from functools import lru_cache

from epochal.contracts.catalog import Catalog
from epochal.service.catalog.bulkhead import Bulkhead
from epochal.service.catalog.sql import SqlCatalog
from epochal.service.domain.ports import Supervisor

_KEPT = 1000


class DriverService:
    def __init__(self, bulkhead: Bulkhead, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

        @lru_cache(maxsize=_KEPT)
        def catalog(execution: str, attempt: int) -> Catalog:
            return SqlCatalog(bulkhead.database, execution, attempt)

        self.catalog = catalog

    def finished(self, execution: str) -> None:
        """What comes next (a restart, the next attempt, nothing) is the supervisor's to see."""
        self._supervisor.wake(execution)
