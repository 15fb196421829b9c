"""How large a slice may be: the configured bound, adapted towards a target epoch duration."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.contracts.source import SliceLimits
from epochal.engine.settings import Configuration

SMOOTHING = 0.5
LARGEST_STEP = 4.0


@dataclass
class Pace:
    """What was measured of earlier epochs, whatever their version. Times are seconds of one monotonic clock."""

    last_start: float | None = None
    _records_per_second: float | None = None
    _last_records: int = 0

    def limits(self, configuration: Configuration) -> SliceLimits:
        """At most ``max_records_per_epoch``; with ``target_epoch_seconds``, what the measured rate gets done in that
        time, changed gradually."""
        bound, seconds = configuration.max_records_per_epoch, configuration.target_epoch_seconds
        if seconds is None or self._records_per_second is None:
            return SliceLimits(max_records=bound)
        target = max(1, int(self._records_per_second * seconds))
        target = min(target, max(1, int(self._last_records * LARGEST_STEP)))
        return SliceLimits(max_records=min(target, bound) if bound else target)

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
