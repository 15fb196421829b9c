"""What look-ups read replicas through, whoever keeps them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from epochal.service.runtime.events.async_notifier import AsyncNotifier
from epochal.service.runtime.replicas.follower import FollowedApplication, FollowedTable
from epochal.service.runtime.replicas.overlay import Overlays
from epochal.snapshots.store import SnapshotStore

FALLBACK_SECONDS = 1.0
"""How often it is looked again without a sign that something is new."""


class ServedReplicas(ABC):
    """What :meth:`table` and :meth:`application` give is not older than what anybody was given before the call."""

    def __init__(self, store: SnapshotStore) -> None:
        self.store = store
        self.overlays = Overlays(store)
        self.moved = AsyncNotifier()
        """Rung when some replica has reached another epoch."""
        self._closing = False

    @abstractmethod
    def open(self) -> None:
        """Raises ``EnvironmentProblem``."""

    @abstractmethod
    def close(self) -> None:
        """When nobody reads any more."""

    @abstractmethod
    def check_followed(self) -> None:
        """Raises ``EnvironmentProblem`` until every application was followed once, where nobody can know before how old
        it is what is there."""

    @abstractmethod
    def table(self, application: str, table: str) -> FollowedTable | None:
        """One queryable table; ``None`` when there is none, or none yet. Quick."""

    @abstractmethod
    def application(self, application: str) -> FollowedApplication | None:
        """What is followed of an application; ``None`` when it is not known (yet)."""

    async def wait(self, there: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``there()``, which is asked again whenever a replica has moved. False when the time is over."""
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
