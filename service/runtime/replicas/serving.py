"""Interface through which look-ups read replicas, independent of the process that maintains them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from epochal.service.runtime.events.async_notifier import AsyncNotifier
from epochal.service.runtime.replicas.follower import FollowedApplication, FollowedTable
from epochal.service.runtime.replicas.overlay import Overlays
from epochal.snapshots.store import SnapshotStore

FALLBACK_SECONDS = 1.0
"""Interval between checks for changes in the absence of a notification."""


class ServedReplicas(ABC):
    """Access to replicas.

    The results of :meth:`table` and :meth:`application` are never older than a result that any caller received earlier.
    """

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self.overlays = Overlays(store)
        self.moved = AsyncNotifier()
        """Notifies waiters when a replica has reached another epoch."""
        self._closing = False
        self._answered: dict[str, tuple[str, int]] = {}
        """Branch and epoch of the latest look-up of an application that files have answered instead of a replica."""

    @abstractmethod
    def open(self) -> None:
        """Open the replicas. Raises ``EnvironmentProblem``."""

    @abstractmethod
    def close(self) -> None:
        """Close the replicas. Requires that all reads have ended."""

    @abstractmethod
    def check_followed(self) -> None:
        """Raises ``EnvironmentProblem`` until every application has been followed once, if the age of existing replicas
        is unknown until then."""

    @abstractmethod
    def table(self, application: str, table: str) -> FollowedTable | None:
        """Return one queryable table; ``None`` if it has no replica, or not yet. Fast."""

    @abstractmethod
    def application(self, application: str) -> FollowedApplication | None:
        """Return the followed state of an application; ``None`` if the application is not followed (yet)."""

    def answered(self, application: str, branch: str, epoch: int) -> None:
        """Record that files have answered a look-up at this epoch: replicas answer from there on."""
        self._answered[application] = branch, epoch

    def _is_behind(self, application: str, seen: FollowedApplication) -> bool:
        """True until the replicas have reached the epoch of the latest look-up that files have answered."""
        latest = self._answered.get(application)
        if latest is None:
            return False
        if seen.branch == latest[0] and (seen.at is None or seen.at.epoch < latest[1]):
            return True
        self._answered.pop(application, None)
        return False

    async def wait(self, there: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``there()`` is true, checking after each replica change. Returns ``False`` on a timeout."""
        deadline = time.monotonic() + seconds
        with self.moved.listener() as listener:
            while True:
                listener.forget()
                if there():
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self._closing:
                    return False
                await listener.wait(min(left, FALLBACK_SECONDS))
