"""Timers of the keys of one subtask in one epoch: the due timers, the order in which they fire, and those to store.

This module neither reads nor writes state. A timer is identified by its time domain, its time and its name: setting an
existing timer has no effect. Times are microseconds from the Unix epoch.
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
"""Time domain, time, name. The timers of a key fire in this order."""


@dataclass(slots=True)
class TimerWrites:
    """The changes of timers by the calls of a chunk, by the position of the key in the chunk.

    ``puts``: the due time of each set timer, which is later than its time if a later timer had already fired.
    ``deletes``: deleted timers that are not due yet, whether or not they are stored. ``dropped``: timers that can no
    longer fire.
    """

    puts: dict[tuple[int, Timer], int] = field(default_factory=dict)
    deletes: set[tuple[int, Timer]] = field(default_factory=set)
    dropped: set[tuple[int, Timer]] = field(default_factory=set)


class Timers:
    """The timers of the current key: :meth:`begin` a key, call the author's function, and fire the timers of
    :meth:`next`.

    ``fire``: the operator's fire watermark. ``draining``: whether this is the last epoch. At the end of the input,
    timers that are set while timers fire are dropped; otherwise they might fire forever.
    """

    def __init__(self, fire: int, epoch_time: int, draining: bool = False) -> None:
        self.writes = TimerWrites()
        self.firing = False
        """True if ``on_timer`` sets timers now, not ``process``."""
        self.fired: Timer | None = None
        self._clocks = (fire, epoch_time)
        self._draining = draining
        self._position = 0
        self._waiting: list[Timer] = []
        self._last: list[Timer | None] = [None, None]
        self._deleted: set[Timer] = set()

    def begin_chunk(self) -> None:
        """Discard the changes of the previous chunk."""
        self.writes = TimerWrites()

    def begin(self, position: int, due: list[Timer]) -> None:
        """Start with the key at ``position``. ``due``: its due timers, in order; the list is consumed."""
        self._position = position
        self._waiting = due
        self._last = [None, None]
        self.firing = False
        if self._deleted:
            self._deleted = set()

    def next(self) -> Timer | None:
        """The next timer to fire; ``None`` if the key has no further due timer."""
        waiting = self._waiting
        while waiting:
            timer = heappop(waiting)
            if self._is_to_fire(timer):
                self.fired = self._last[timer[0]] = timer
                return timer
        return None

    def next_in_event_time(self) -> int | None:
        """The time of the next event-time timer to fire; ``None`` if there is none."""
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
        """Delete a timer. Without effect if it does not exist."""
        timer = (domain, time, name)
        self.writes.puts.pop((self._position, timer), None)
        self.writes.dropped.discard((self._position, timer))
        if time > self._clocks[domain]:
            self.writes.deletes.add((self._position, timer))
        else:
            self._deleted.add(timer)

    def _is_to_fire(self, timer: Timer) -> bool:
        # A stored timer and the same timer set again are consecutive: the timers of a domain fire in ascending order.
        return timer != self._last[timer[0]] and timer not in self._deleted

    def _is_dropped(self, domain: int, clock: int, is_past: bool) -> bool:
        """True if a timer is dropped. ``is_past``: whether a later timer has already fired."""
        if domain == PROCESSING:
            return self._draining
        return clock == END and (self.firing or is_past)

    def _drop(self, timer: Timer) -> None:
        self.writes.deletes.discard((self._position, timer))
        if timer in self._deleted or timer not in self._waiting:  # a timer that will fire is unchanged
            self.writes.dropped.add((self._position, timer))

    def _put(self, timer: Timer, due: int) -> None:
        self.writes.deletes.discard((self._position, timer))
        self.writes.puts[self._position, timer] = due
