"""Lag of replicas behind the committed epochs of the catalog. Stalled replicas therefore report a growing lag."""

from __future__ import annotations

import time
from collections.abc import Mapping

from epochal.contracts.identity import EpochKey
from epochal.errors import EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.metrics import ApplicationMetrics
from epochal.service.catalog.types import now
from epochal.service.domain.snapshots import ReplicaLag
from epochal.service.runtime.replicas.serving import ServedReplicas

KEPT_SECONDS = 5.0


class ReplicaLags:
    """Replica lags, computed at most once every 5 seconds regardless of the number of callers."""

    def __init__(self, database: Database, replicas: ServedReplicas) -> None:
        self._database = database
        self._replicas = replicas
        self._looked_at = float("-inf")
        self._lags: Mapping[str, ReplicaLag] = {}

    def __call__(self) -> Mapping[str, ReplicaLag]:
        """Return the lag of each application with a committed epoch. Empty while the catalog does not respond."""
        if time.monotonic() - self._looked_at > KEPT_SECONDS:
            try:
                self._lags = self._look()
            except EpochalError:
                self._lags = {}
            self._looked_at = time.monotonic()
        return self._lags

    def _look(self) -> Mapping[str, ReplicaLag]:
        found: dict[str, ReplicaLag] = {}
        with self._database.reading() as session:
            figures, moment = ApplicationMetrics(session), now()
            behind: dict[str, tuple[EpochKey, EpochKey]] = {}
            # Read the catalog first: replicas that advance after this read must not count as behind.
            for name, head in figures.committed_heads().items():
                at = self._at(name)
                if at is not None and at.branch == head.branch and at.epoch >= head.epoch:
                    found[name] = ReplicaLag(0, 0.0)
                else:
                    behind[name] = head, EpochKey(head.branch, 0 if at is None else at.epoch)
            committed = figures.committed_after({before for _, before in behind.values()})
        for name, (head, before) in behind.items():
            seconds = (moment - committed.get(before, moment)).total_seconds()
            found[name] = ReplicaLag(max(0, head.epoch - before.epoch), max(0.0, seconds))
        return found

    def _at(self, application: str) -> EpochKey | None:
        followed = self._replicas.application(application)
        return None if followed is None else followed.at
