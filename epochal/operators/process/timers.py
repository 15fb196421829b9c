"""Timers of the keys of one subtask in one epoch: which are due, in which order they fire, what is left for later.

No state is read or written here. A timer is known by its time domain, its time and its name: setting one that is set
already changes nothing. Times are microseconds from the Unix epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from epochal.contracts.conditions import END
from epochal.declarations.author_classes import TimeDomain

EVENT, PROCESSING = 0, 1
DOMAINS: Final[tuple[TimeDomain, TimeDomain]] = ("event", "processing")
Timer = tuple[int, int, str]
"""Time domain, time, name: in this order timers of a key fire."""


@dataclass(slots=True)
class TimerWrites:
    """What a chunk's calls leave behind, by the position of the key in the chunk.

    ``puts``: when the timer is due, which is later than its time for one that was set at or before a timer that had
    fired. ``deletes``: timers that are not due yet and were deleted, whether or not they are stored. ``dropped``: those
    that were set where no time comes that they could wait for.
    """

    puts: dict[tuple[int, Timer], int] = field(default_factory=dict)
    deletes: set[tuple[int, Timer]] = field(default_factory=set)
    dropped: set[tuple[int, Timer]] = field(default_factory=set)


class Timers:
    """The timers of the current key: :meth:`begin` a key, call the author's function, and fire what :meth:`next` gives.

    ``fire``: the operator's fire watermark. ``draining``: no epoch follows. At the end of the input there is no time
    that a timer could wait for: what is set there while timers fire is dropped, or it might go on for ever.
    """

    def __init__(self, fire: int, epoch_time: int, draining: bool = False) -> None:
        self.writes = TimerWrites()
        self.firing = False
        """Whether it is ``on_timer`` that sets timers now, not ``process``."""
        self.fired: Timer | None = None
        self._clocks = (fire, epoch_time)
        self._draining = draining
        self._position = 0
        self._waiting: list[Timer] = []
        self._last: list[Timer | None] = [None, None]
        self._deleted: set[Timer] = set()

    def begin_chunk(self) -> None:
        """Forget what the last chunk left behind."""
        self.writes = TimerWrites()

    def begin(self, position: int, due: list[Timer]) -> None:
        """Go on with the key at ``position``. ``due``: its timers that are due, in their order; it is used up."""
        self._position = position
        self._waiting = due
        self._last = [None, None]
        self.firing = False
        if self._deleted:
            self._deleted = set()

    def next(self) -> Timer | None:
        """The next timer to fire; ``None`` when none of the key is due any more."""
        waiting = self._waiting
        while waiting:
            timer = heappop(waiting)
            if self._is_to_fire(timer):
                self.fired = self._last[timer[0]] = timer
                return timer
        return None

    def next_in_event_time(self) -> int | None:
        """The time of the next timer in event time that is to fire; ``None``: there is none."""
        waiting = self._waiting
        while waiting and not self._is_to_fire(waiting[0]):
            heappop(waiting)
        return waiting[0][1] if waiting and waiting[0][0] == EVENT else None

    def set(self, domain: int, time: int, name: str) -> None:
        timer, clock, last = (domain, time, name), self._clocks[domain], self._last[domain]
        is_past = last is not None and time <= last[1]
        if self._is_dropped(domain, clock, is_past):
            self._drop(timer)
        elif time > clock:
            self._put(timer, due=time)
        elif is_past:
            self._put(timer, due=clock + 1)
        else:
            self._deleted.discard(timer)
            heappush(self._waiting, timer)

    def delete(self, domain: int, time: int, name: str) -> None:
        """Without effect where there is no such timer."""
        timer = (domain, time, name)
        self.writes.puts.pop((self._position, timer), None)
        self.writes.dropped.discard((self._position, timer))
        if time > self._clocks[domain]:
            self.writes.deletes.add((self._position, timer))
        else:
            self._deleted.add(timer)

    def _is_to_fire(self, timer: Timer) -> bool:
        # Equal ones, stored and set again, follow each other: those of one domain fire in ascending order.
        return timer != self._last[timer[0]] and timer not in self._deleted

    def _is_dropped(self, domain: int, clock: int, is_past: bool) -> bool:
        """``is_past``: a timer has fired that was to fire after it."""
        if domain == PROCESSING:
            return self._draining
        return clock == END and (self.firing or is_past)

    def _drop(self, timer: Timer) -> None:
        self.writes.deletes.discard((self._position, timer))
        if timer in self._deleted or timer not in self._waiting:  # one that is to fire stays what it is
            self.writes.dropped.add((self._position, timer))

    def _put(self, timer: Timer, due: int) -> None:
        self.writes.deletes.discard((self._position, timer))
        self.writes.puts[self._position, timer] = due
