"""When another spare may be begun, and how long one is kept: of drivers, and of builders' children."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from epochal.service.runtime.machine import steady_seconds

_CPU_TIMES = Path("/proc/stat")
LONGEST_PAUSE_SECONDS = 300.0


@dataclass(frozen=True)
class SpareTimes:
    """In seconds. ``retired``: no spare becomes older. ``ready``: so long one may take. ``answer``: so long it may take
    to say that it still answers. ``quiet``: since somebody asked for a spare, until another is begun; ``busy``: until
    it is begun although the machine has been busy ever since. ``pause``: from the start of one to that of the next;
    each that never became ready doubles it."""

    retired: float = 3600.0
    ready: float = 600.0
    answer: float = 2.0
    quiet: float = 5.0
    busy: float = 30.0
    pause: float = 2.0


class Idleness:
    """How idle this machine's cores were between two looks."""

    def __init__(self) -> None:
        self._before = (0, 0)

    def is_quiet(self) -> bool:
        """Whether half of their time was left; where the system does not say, it is taken for so."""
        try:
            times = [int(text) for text in _CPU_TIMES.read_text().partition("\n")[0].split()[1:9]]
        except OSError:
            return True
        idle, total = times[3] + times[4], sum(times)
        (idle_before, total_before), self._before = self._before, (idle, total)
        return total > total_before and 2 * (idle - idle_before) >= total - total_before


class SpareSchedule:
    """It is told what happens to spares, by whoever keeps them."""

    def __init__(self, times: SpareTimes, is_quiet: Callable[[], bool], at_once: bool = False) -> None:
        """``is_quiet``: whether the machine has been since it was asked last. ``at_once``: the first one is begun as if
        nobody had asked for long, else as if somebody just had."""
        self._times = times
        self._is_quiet = is_quiet
        self._asked_for_at = -math.inf if at_once else steady_seconds()
        self._pause = times.pause
        self._not_before = 0.0

    def asked_for(self) -> None:
        """Somebody asks for a spare, and now begins to work, with one or without."""
        self._asked_for_at = steady_seconds()
        self._pause = self._times.pause

    def begun(self) -> None:
        self._not_before = steady_seconds() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def became_ready(self) -> None:
        self._pause = self._times.pause

    def may_begin(self) -> bool:
        is_quiet = self._is_quiet()  # asked each time: of what was before the last time nothing follows
        now = steady_seconds()
        since = now - self._asked_for_at
        if now < self._not_before or since < self._times.quiet:
            return False
        return is_quiet or since >= self._times.busy

    def why_over(self, age_seconds: float, is_ready: bool) -> str | None:
        """Why a spare of this age goes; ``None``: it stays."""
        if not is_ready and age_seconds > self._times.ready:
            return "is not ready in time"
        return "is old" if age_seconds >= self._times.retired else None
