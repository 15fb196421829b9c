"""The clock of an attempt: epoch time from a wall clock that may jump and an elapsed-time clock that does not.

Within an attempt, epoch time is its first reading of the wall clock plus elapsed time, which includes suspension. A
wall clock within the tolerance of that sum is followed gradually; one beyond it is ignored. :func:`advanced` makes the
decision and reads no clock; :class:`EpochClock` reads the clocks of the machine and reports.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from epochal.contracts.conditions import as_datetime, microseconds
from epochal.errors import ClockDeviates

log = logging.getLogger(__name__)

SLEW: Final = 100
"""Epoch time approaches the wall clock by at most one microsecond per this many microseconds of elapsed time."""
_SECOND: Final = 1_000_000


class Reading(NamedTuple):
    """Both clocks at one moment, in microseconds. ``elapsed`` has an arbitrary origin and includes suspension."""

    wall: int
    elapsed: int


@dataclass(frozen=True)
class ClockState:
    """Epoch time at the latest reading, and what it was computed from. All values are microseconds.

    ``offset``: the correction of ``first`` plus elapsed time. ``slewed_at``: elapsed time up to which the allowance for
    corrections is used. ``deviation``: the wall clock minus ``first`` plus elapsed time. ``ignored``: the deviation is
    beyond the tolerance.
    """

    first: Reading
    elapsed: int
    slewed_at: int
    offset: int = 0
    deviation: int = 0
    ignored: bool = False

    @classmethod
    def started(cls, reading: Reading) -> ClockState:
        """The state at the first reading of an attempt."""
        return cls(reading, reading.elapsed, reading.elapsed)

    @property
    def time(self) -> int:
        return self.first.wall + self.elapsed - self.first.elapsed + self.offset


def advanced(state: ClockState, reading: Reading, tolerance: int) -> ClockState:
    """The state after another reading. Epoch time never falls, and ``offset`` never exceeds the tolerance.

    The deviation is measured against the first reading, not against the corrected time, so that a wall clock cannot
    move epoch time beyond the tolerance in several steps.
    """
    elapsed = max(reading.elapsed, state.elapsed)
    deviation = reading.wall - (state.first.wall + elapsed - state.first.elapsed)
    if abs(deviation) > tolerance:
        return replace(state, elapsed=elapsed, slewed_at=elapsed, deviation=deviation, ignored=True)
    missing, allowance = deviation - state.offset, (elapsed - state.slewed_at) // SLEW
    step = max(-allowance, min(missing, allowance))
    return replace(
        state,
        elapsed=elapsed,
        # Frequent readings would otherwise round every allowance down to nothing.
        slewed_at=elapsed if step == missing else state.slewed_at + allowance * SLEW,
        offset=state.offset + step,
        deviation=deviation,
        ignored=False,
    )


def deviation_of(earliest: int, latest: int, reference: int) -> int:
    """Deviation of a clock from ``reference``, a reading of another clock between ``earliest`` and ``latest``."""
    if reference < earliest:
        return earliest - reference
    return min(0, latest - reference)


def elapsed_microseconds() -> int:
    """Elapsed time including suspension, where the operating system has such a clock."""
    return _elapsed_nanoseconds() // 1_000


def _elapsed_nanoseconds() -> int:
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux, where CLOCK_MONOTONIC stands still during suspension
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":  # where it does not, unlike the clock of monotonic_ns()
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()


def wall_microseconds() -> int:
    return time.time_ns() // 1_000


class EpochClock:
    """The clock of one attempt. Calling it returns epoch time in UTC. Safe from any thread.

    ``tolerance_seconds`` is called at each reading, since an upgrade may change it.
    """

    def __init__(
        self,
        tolerance_seconds: Callable[[], float],
        wall: Callable[[], int] = wall_microseconds,
        elapsed: Callable[[], int] = elapsed_microseconds,
    ) -> None:
        self._tolerance_seconds = tolerance_seconds
        self._wall, self._elapsed = wall, elapsed
        self._lock = threading.Lock()
        self._state = ClockState.started(self._reading())

    def __call__(self) -> datetime:
        time = as_datetime(self.read().time)
        assert time is not None  # this machine's clock has a smaller range
        return time

    def read(self) -> ClockState:
        """The state at this moment. Logs when the wall clock leaves the tolerance, and when it returns."""
        with self._lock:
            before = self._state
            self._state = state = advanced(before, self._reading(), self._tolerance)
        if state.ignored and not before.ignored:
            log.warning("%s", _ignored(state, self._tolerance_seconds()))
        elif before.ignored and not state.ignored:
            log.warning("The wall clock is back within %s of epoch time, which follows it.", _seconds(self._tolerance))
        return state

    def compare(self, requested_at: datetime, catalog_time: datetime | None) -> None:
        """Raise ``ClockDeviates`` if the clock of the catalog's database, read since ``requested_at``, differs by more
        than the tolerance. ``None``: the catalog has no clock."""
        if catalog_time is None:
            return
        here = self()
        deviation = deviation_of(microseconds(requested_at), microseconds(here), microseconds(catalog_time))
        if abs(deviation) > self._tolerance:
            raise ClockDeviates(
                f"The clock of the driver shows {_shown(here)} and the clock of the catalog's database "
                f"{_shown(catalog_time)}. They may differ by {_seconds(self._tolerance)} (clock_tolerance_seconds). "
                "Synchronise the clocks of both machines; the next attempt compares them again."
            )

    def warning(self, head: int | None) -> str | None:
        """Warning about the clock, for display. ``head``: epoch time of the latest epoch, in microseconds."""
        state = self.read()
        if state.ignored:
            return _ignored(state, self._tolerance_seconds())
        if head is None or head - state.time <= self._tolerance:
            return None
        return (
            f"Epoch time of the latest epoch, {_shown_microseconds(head)}, is ahead of the clock. Timers and times to "
            "live in processing time are paused until the clock reaches it. If the clock is right, roll back to an "
            "epoch before the jump."
        )

    def report(self, head: int | None) -> tuple[float, float]:
        """Seconds by which the wall clock deviates, and by which the epoch time ``head`` is ahead of the clock."""
        state = self.read()
        return state.deviation / _SECOND, 0.0 if head is None else max(0, head - state.time) / _SECOND

    @property
    def _tolerance(self) -> int:
        return round(self._tolerance_seconds() * _SECOND)

    def _reading(self) -> Reading:
        return Reading(self._wall(), self._elapsed())


def _ignored(state: ClockState, tolerance_seconds: float) -> str:
    direction = "ahead of" if state.deviation > 0 else "behind"
    return (
        f"The wall clock is {abs(state.deviation) / _SECOND:,.0f} s {direction} the time that has elapsed since the "
        f"attempt began, more than clock_tolerance_seconds ({tolerance_seconds:g}). Epoch time ignores it. Correct the "
        "clock; if the clock is right, stop and start the application."
    )


def _seconds(microseconds: int) -> str:
    return f"{microseconds / _SECOND:,.1f}".removesuffix(".0") + " s"


def _shown(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="milliseconds")


def _shown_microseconds(time: int) -> str:
    moment = as_datetime(time)
    return "beyond all dates" if moment is None else _shown(moment)
