"""Sessions: the intervals of new rows, merged with each other and with those that are stored, in one pass over arrays.

A row is a session by itself, ``[time, time + gap)``; sessions of one key that overlap or touch are one, as in Spark's
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
    """Session ``i`` is of key number ``keys[i]`` and from ``starts[i]`` to before ``ends[i]``.

    Three arrays of one length, int64; keys are numbered from 0 (the runs of ``tasks.values.run_starts``), times are
    microseconds from the Unix epoch.
    """

    keys: Integers
    starts: Integers
    ends: Integers


@dataclass(frozen=True)
class MergedSessions:
    """What the sessions of an epoch come to.

    ``changed``: sessions that hold something new, in the order of key, then start. ``of_new``: for each new session its
    position in ``changed``. ``of_stored``: for each stored session the position in ``changed`` of the one that takes
    its place; -1: it stays as it is.
    """

    changed: Sessions
    of_new: Integers
    of_stored: Integers


def late_before(gap: int, late: int, allowed_lateness: int = 0) -> int:
    """The time before which a row is late: it would be a session by itself that closed before ``late``.

    ``BEGINNING`` and ``END`` stay what they are.
    """
    return late if late in (BEGINNING, END) else closed_until(late, allowed_lateness) - gap + 1


def closed_until(watermark: int, allowed_lateness: int = 0) -> int:
    """Sessions that end at most there have closed: the watermark is past their end, by more than ``allowed_lateness``.

    When it has only reached the end, a row may still come there, which makes the session longer. ``BEGINNING`` and
    ``END`` stay what they are.
    """
    return watermark if watermark in (BEGINNING, END) else watermark - allowed_lateness - 1


def closes_at(ends: Integers, allowed_lateness: int = 0) -> Integers:
    """The watermarks that sessions with these ends close at."""
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
    changes |= sizes > 1  # two that are stored touch only after the gap grew
    position = np.where(changes, np.cumsum(changes) - 1, -1)
    lasts = np.maximum.reduceat(ends[order], first) if len(first) else ends
    changed = Sessions(keys[order][first][changes], starts[order][first][changes], lasts[changes])
    return MergedSessions(changed, position[session[:count]], position[session[count:]])


def _begins(keys: Integers, starts: Integers, ends: Integers) -> npt.NDArray[np.bool_]:
    """Of intervals in the order of key and start: whether one is apart from all before it of its key."""
    distinct, ranks = np.unique(ends, return_inverse=True)
    # One running maximum for all keys: a later key's ranks are above all of an earlier one's.
    floor = keys * len(distinct)
    reached = distinct[np.maximum.accumulate(floor + ranks) - floor] if len(keys) else ends
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > reached[:-1])
    return begins
