"""How large a slice may be: the configured bound, adapted towards a target epoch duration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from epochal.contracts.source import SliceLimits
from epochal.engine.settings import Configuration

SMOOTHING = 0.5
LARGEST_STEP = 4.0


@dataclass
class Pace:
    """``target_seconds`` None: no adaptation. Times are seconds of one monotonic clock."""

    max_records: int | None
    target_seconds: float | None
    last_start: float | None = None
    _records_per_second: float | None = None
    _last_records: int = 0

    def limited(self, configuration: Configuration) -> Pace:
        """With the bounds of another configuration, and the rate measured so far."""
        return replace(
            self, max_records=configuration.max_records_per_epoch, target_seconds=configuration.target_epoch_seconds
        )

    def limits(self) -> SliceLimits:
        """At most ``max_records``; with a target, what the measured rate gets done in that time, changed gradually."""
        if self.target_seconds is None or self._records_per_second is None:
            return SliceLimits(max_records=self.max_records)
        target = max(1, int(self._records_per_second * self.target_seconds))
        target = min(target, max(1, int(self._last_records * LARGEST_STEP)))
        return SliceLimits(max_records=min(target, self.max_records) if self.max_records else target)

    def started(self, now: float) -> None:
        self.last_start = now

    def prepared(self, now: float, records: int) -> None:
        """An epoch of ``records`` rows was decided."""
        if records <= 0 or self.last_start is None or now <= self.last_start:
            return
        rate = records / (now - self.last_start)
        before = self._records_per_second
        self._records_per_second = rate if before is None else before + SMOOTHING * (rate - before)
        self._last_records = records
