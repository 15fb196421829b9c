"""Waiting for a snapshot store that does not answer, or refuses requests: no attempt fails, however long it takes.

An epoch whose files cannot be written is aborted without counting as failed; its slice is processed again when the
store answers. Work before the first epoch is repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from epochal.background.retries import Backoff
from epochal.contracts.catalog import Failure
from epochal.engine.failures import failure_of
from epochal.engine.source_wait import SourceAway, SourceWait
from epochal.errors import EpochTimeout, SourceUnavailable, StoreUnavailable, error_class
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
"""Longest pause between two probes."""
_PAUSES = Backoff(0.1, PROBE_SECONDS)

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoreAway:
    """A store that does not answer, with the time and the reason."""

    since: datetime
    error: str

    def __str__(self) -> str:
        return f"waiting for the store since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.error}"


@dataclass
class StoreWait:
    """Availability of the store of one attempt. ``away``: ``None`` while it answers."""

    store: SnapshotStore
    clock: Callable[[], float] = time.monotonic
    away: StoreAway | None = field(default=None, init=False)
    _probe_at: float = field(default=0.0, init=False)
    _failures: int = field(default=0, init=False)

    def explains(self, failure: Failure) -> bool:
        """Report whether an epoch failed because the store is away, and note it. An epoch can also exceed its timeout
        while its tasks repeat their requests."""
        kind = error_class(failure.type)
        if kind is None or not issubclass(kind, StoreUnavailable | EpochTimeout):
            return False
        if issubclass(kind, StoreUnavailable):
            self.lost(failure.message)
            return True
        try:
            self.store.probe()
        except StoreUnavailable as error:
            self.lost(error.message)
            return True
        return False

    def lost(self, error: str) -> None:
        """Note that a request has failed. Each failure in a row doubles the pause before the next probe."""
        if self.away is None or self.away.error != error:
            log.warning("the store is not available: %s", error)
        self.away = StoreAway(self.away.since if self.away is not None else datetime.now(UTC), error)
        self._probe_at = self.clock() + _PAUSES.pause(self._failures)
        self._failures += 1

    def worked(self) -> None:
        """Note that an epoch has been decided, so that the store works."""
        self._failures = 0

    def seconds(self) -> float:
        """Time until the store answers again or has to be probed next; 0 if work can continue."""
        if self.away is None:
            return 0.0
        if (left := self._probe_at - self.clock()) > 0:
            return left
        try:
            self.store.probe()
        except StoreUnavailable as error:
            self.lost(error.message)
            return max(0.0, self._probe_at - self.clock())
        log.warning("the store is available again, after %s", self.away)
        self.away = None
        return 0.0


def until_answered(
    work: Callable[[], Result],
    store: SnapshotStore,
    pause: Callable[[float], None],
    note: Callable[[Sequence[StoreAway | SourceAway]], None],
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Repeat ``work`` from its beginning until the store and all sources answer throughout.

    ``note`` reports what is waited for before each pause, and an empty list before ``work`` is repeated.
    """
    store_wait, source_wait = StoreWait(store, clock), SourceWait(clock)
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            store_wait.lost(error.message)
        except SourceUnavailable as error:
            source_wait.explains(failure_of(error), ())
        while seconds := store_wait.seconds() or source_wait.seconds():
            away = [] if store_wait.away is None else [store_wait.away]
            note([*away, *source_wait.away])
            pause(seconds)
        note([])
