"""Sessions: the intervals of new rows, merged with each other and with stored sessions, in one pass over arrays.

A single row is a session ``[time, time + gap)``. Sessions of one key that overlap or touch are merged, as in Spark's
``session_window`` (Akidau et al., "The dataflow model", reference [21] of the thesis, section 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epochal.contracts.conditions import BEGINNING, END

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sessions:
    """Session ``i`` has the key with number ``keys[i]`` and the interval ``[starts[i], ends[i])``.

    Three int64 arrays of one length; keys are numbered from 0, times are microseconds from the Unix epoch.
    """

    keys: Integers
    starts: Integers
    ends: Integers


@dataclass(frozen=True)
class MergedSessions:
    """The merged sessions of an epoch.

    ``changed``: sessions with new rows, sorted by key, then start. ``of_new``: for each new session its position in
    ``changed``. ``of_stored``: for each stored session the position in ``changed`` of the session that replaces it, or
    -1 if it is unchanged.
    """

    changed: Sessions
    of_new: Integers
    of_stored: Integers


def late_before(gap: int, late: int, allowed_lateness: int = 0) -> int:
    """The time before which a row is late: a session of this row alone would have closed before ``late``.

    ``BEGINNING`` and ``END`` are returned unchanged.
    """
    return late if late in (BEGINNING, END) else closed_until(late, allowed_lateness) - gap + 1


def closed_until(watermark: int, allowed_lateness: int = 0) -> int:
    """The last end of closed sessions: the watermark has passed their end by more than ``allowed_lateness``.

    A row exactly at the end of a session extends it, so that a session is open until the watermark has passed its end.
    ``BEGINNING`` and ``END`` are returned unchanged.
    """
    return watermark if watermark in (BEGINNING, END) else watermark - allowed_lateness - 1


def closes_at(ends: Integers, allowed_lateness: int = 0) -> Integers:
    """The watermarks at which sessions with these ends close."""
    return ends + (allowed_lateness + 1)


def merged_sessions(new: Sessions, stored: Sessions) -> MergedSessions:
    """Merge ``new`` with the ``stored`` sessions of the same keys, both in any order."""
    count = len(new.keys)
    keys = np.concatenate([new.keys, stored.keys])
    starts, ends = np.concatenate([new.starts, stored.starts]), np.concatenate([new.ends, stored.ends])
    order = np.lexsort((starts, keys))
    session = np.empty(len(keys), np.int64)
    begins = _begins(keys[order], starts[order], ends[order])
    session[order] = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    sizes = np.diff(first, append=len(keys))
    changes = np.zeros(len(first), np.bool_)
    changes[session[:count]] = True
    changes |= sizes > 1  # stored sessions touch each other only after the gap was increased
    position = np.where(changes, np.cumsum(changes) - 1, -1)
    lasts = np.maximum.reduceat(ends[order], first) if len(first) else ends
    changed = Sessions(keys[order][first][changes], starts[order][first][changes], lasts[changes])
    return MergedSessions(changed, position[session[:count]], position[session[count:]])


def _begins(keys: Integers, starts: Integers, ends: Integers) -> npt.NDArray[np.bool_]:
    """A mask of the intervals, sorted by key and start, that touch no earlier interval of their key."""
    distinct, ranks = np.unique(ends, return_inverse=True)
    # One running maximum for all keys: the ranks of a key exceed those of all earlier keys.
    floor = keys * len(distinct)
    reached = distinct[np.maximum.accumulate(floor + ranks) - floor] if len(keys) else ends
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > reached[:-1])
    return begins
