"""Windows and joins over all rows, as plain loops. Times are microseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

SECOND = 1_000_000


class Event(NamedTuple):
    key: Any
    time: int
    number: int


class Window(NamedTuple):
    key: Any
    start: int
    end: int


Windows = dict[Window, list[int]]
"""Numbers of the rows in each window."""


def in_sliding(rows: Iterable[Event], size: int, slide: int) -> Windows:
    """Windows that begin at every multiple of ``slide``."""
    found: Windows = {}
    for key, time, number in rows:
        start = time // slide * slide
        while start + size > time:
            found.setdefault(Window(key, start, start + size), []).append(number)
            start -= slide
    return found


def in_sessions(rows: Iterable[Event], gap: int) -> Windows:
    """Sessions of rows of a key, each at most ``gap`` after the previous one."""
    found: Windows = {}
    open: dict[Any, Window] = {}
    for key, time, number in sorted(rows, key=lambda row: row.time):
        before = open.get(key)
        if before is None or time > before.end:
            open[key] = Window(key, time, time + gap)
            found[open[key]] = [number]
            continue
        open[key] = Window(key, before.start, time + gap)
        found[open[key]] = [*found.pop(before), number]
    return found


def results(windows: Windows) -> list[Event]:
    """A row for each window with the sum of its numbers, at the last instant in it."""
    return [Event(window.key, window.end - 1, sum(numbers)) for window, numbers in windows.items()]


def joined(left: Sequence[Event], right: Sequence[Event], low: int, high: int) -> list[tuple[Event, Event]]:
    """The pairs of a key whose right row is ``low`` to ``high`` after the left one."""
    return [
        (one, other)
        for one in left
        for other in right
        if one.key == other.key is not None and low <= other.time - one.time <= high
    ]


def as_of(rows: Sequence[Event], versions: Sequence[Event]) -> list[tuple[Event, Event | None]]:
    """Each row with the newest version of its key at or before it."""
    found = []
    for row in rows:
        before = [each for each in versions if each.key == row.key is not None and each.time <= row.time]
        found.append((row, max(before, key=lambda version: version.time, default=None)))
    return found
