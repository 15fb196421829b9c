"""Sources whose external systems do not answer: epochs continue without them, and no attempt fails for this reason.

A source that cannot be planned has no slice until it answers. An epoch whose tasks cannot read a source is aborted
without counting as failed, and its slice is planned again after a pause.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from epochal.background.retries import Backoff
from epochal.contracts.catalog import Failure
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.errors import SourceUnavailable, error_class

log = logging.getLogger(__name__)

_PAUSES = Backoff(0.1, 2.0)


@dataclass(frozen=True)
class SourceAway:
    """A source that does not answer, with the time and the reason. ``name``: ``None`` if an epoch read several."""

    name: str | None
    since: datetime
    error: str

    def __str__(self) -> str:
        source = "a source" if self.name is None else f"source {self.name!r}"
        return f"waiting for {source} since {self.since:%Y-%m-%dT%H:%M:%SZ}: {self.error}"


@dataclass
class SourceWait:
    """Availability of the sources of one attempt."""

    clock: Callable[[], float] = time.monotonic
    _unplanned: dict[str, SourceAway] = field(default_factory=dict, init=False)
    """Sources that did not answer their last ``plan``, by name."""
    _unread: SourceAway | None = field(default=None, init=False)
    """A source that tasks could not read; ``None`` after an epoch has succeeded."""
    _failures: int = field(default=0, init=False)
    _again_at: float = field(default=0.0, init=False)

    @property
    def away(self) -> list[SourceAway]:
        """The sources that are waited for."""
        unread = self._unread
        left = [] if unread is None or unread.name in self._unplanned else [unread]
        return [*self._unplanned.values(), *left]

    @property
    def names(self) -> frozenset[str]:
        """The names of these sources."""
        return frozenset(each.name for each in self.away if each.name is not None)

    def plan(self, sources: Mapping[str, Source], limits: SliceLimits) -> dict[str, Slice]:
        """The next slice of each source that has input and answers."""
        found = {}
        for name, source in sources.items():
            try:
                slice = source.plan(limits)
            except SourceUnavailable as error:
                self._lost(name, error.message)
                continue
            if (before := self._unplanned.pop(name, None)) is not None:
                log.warning("a source answers again, after %s", before)
            if slice is not None:
                found[name] = slice
        return found

    def explains(self, failure: Failure, names: Collection[str]) -> bool:
        """Report whether an epoch that read the sources ``names`` failed since one of them is away, and note it."""
        kind = error_class(failure.type)
        if kind is None or not issubclass(kind, SourceUnavailable):
            return False
        since = datetime.now(UTC) if self._unread is None else self._unread.since
        self._unread = SourceAway(next(iter(names)) if len(names) == 1 else None, since, failure.message)
        log.warning("%s", self._unread)
        self._again_at = self.clock() + _PAUSES.pause(self._failures)
        self._failures += 1
        return True

    def worked(self) -> None:
        """Note that an epoch has been decided, so that its sources were read."""
        self._unread, self._failures = None, 0

    def seconds(self) -> float:
        """Time until the next epoch may read the sources."""
        return 0.0 if self._unread is None else max(0.0, self._again_at - self.clock())

    def _lost(self, name: str, error: str) -> None:
        before = self._unplanned.get(name)
        if before is None:
            log.warning("source %r does not answer; epochs continue without it: %s", name, error)
        self._unplanned[name] = SourceAway(name, datetime.now(UTC) if before is None else before.since, error)
