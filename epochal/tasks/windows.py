"""Windows over NumPy arrays: the pane of a time, the windows of a pane, the panes of a window.

Times are int64, microseconds from the Unix epoch, UTC. No step is taken per row: a fixed grid is integer arithmetic,
and each boundary of a calendar's grid near some row is computed once. :mod:`epochal.declarations.event_time` has the
same as Spark expressions, for rows before the shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.declarations.intervals import DAY
from epochal.declarations.windows import CalendarGrid, FixedGrid, GridWindows
from epochal.errors import InvalidInput
from epochal.state.watermarks import BEGINNING, END

Integers = npt.NDArray[np.int64]
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_UNIX_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  local time of any zone
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class Assigned:
    """Windows of rows: row ``rows[i]`` is in the window ``[starts[i], ends[i])``. Sorted by row, start, end."""

    rows: Integers
    starts: Integers
    ends: Integers


def times_of(column: pa.Array) -> Integers:
    """The times of a timestamp column without nulls. Raises ``InvalidInput``."""
    if column.null_count:
        raise InvalidInput("An event time is null, although rows without an event time were rejected before.")
    return column.cast(TIMESTAMP).view(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def timestamps(times: Integers) -> pa.Array:
    """Times as a timestamp column, in UTC."""
    return pa.array(times, pa.int64()).view(TIMESTAMP)


def pane_starts(windows: GridWindows, times: Integers) -> Integers:
    """The start of the pane of each time; where a row is in one window only, the start of its window."""
    return boundaries(windows, pane_indices(windows, times))


def pane_indices(windows: GridWindows, times: Integers) -> Integers:
    """The number of the pane of each time on the grid. Raises ``InvalidInput`` for a time outside the calendar."""
    grid = windows.grid
    if isinstance(grid, FixedGrid):
        return np.floor_divide(times - grid.origin, grid.pane)
    # Local clocks differ from UTC by at most about a day, and from the grid by ``shift``.
    days = np.unique(np.floor_divide(times - grid.shift, DAY))
    near = np.unique((days[:, None] + np.arange(-2, 3)).ravel())
    candidates = _nominal_panes(grid, near)
    candidates = np.unique((candidates[:, None] + np.arange(2)).ravel())
    found = np.searchsorted(_calendar_boundaries(grid, candidates), times, side="right") - 1
    return candidates[found]


def boundaries(windows: GridWindows, indices: Integers) -> Integers:
    """The start of each pane, by its number. It is the end of the previous pane."""
    grid = windows.grid
    if isinstance(grid, FixedGrid):
        return indices * grid.pane + grid.origin
    distinct, positions = np.unique(indices, return_inverse=True)
    return _calendar_boundaries(grid, distinct)[positions]


def assigned(windows: GridWindows, times: Integers) -> Assigned:
    """All windows that contain each time. For the starts of panes: the windows that each pane is part of."""
    panes = pane_indices(windows, times)
    if windows.cumulative:
        first = np.floor_divide(panes, windows.panes) * windows.panes
        counts = first + windows.panes - panes
        rows, step = expanded(counts)
        return Assigned(rows, boundaries(windows, first[rows]), boundaries(windows, panes[rows] + 1 + step))
    oldest = np.floor_divide(panes - windows.panes, windows.every) + 1
    counts = np.floor_divide(panes, windows.every) - oldest + 1
    rows, step = expanded(counts)
    first = (oldest[rows] + step) * windows.every
    return Assigned(rows, boundaries(windows, first), boundaries(windows, first + windows.panes))


def panes_of(windows: GridWindows, starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """The panes of windows: for each pane the position of its window and its start, in ascending order.

    A day that a time zone skipped (Samoa, 30 December 2011) is not a pane, as it contains no time.
    """
    first = pane_indices(windows, starts)
    rows, step = expanded(pane_indices(windows, ends - 1) + 1 - first)
    panes = first[rows] + step
    found = boundaries(windows, panes)
    if isinstance(windows.grid, FixedGrid):
        return rows, found
    there = found < boundaries(windows, panes + 1)
    return rows[there], found[there]


def late_before(windows: GridWindows, late: int, allowed_lateness: int = 0) -> int:
    """The time before which a row is late: all of its windows ended ``allowed_lateness`` or more before ``late``.

    A row with an open window is not late. So one comparison with a literal finds late rows, before any shuffle.
    ``BEGINNING`` and ``END`` are returned unchanged.
    """
    if late in (BEGINNING, END):
        return late
    reached = late - allowed_lateness
    here = int(pane_indices(windows, np.array([reached]))[0])
    # The last window of pane i ends with pane  i // every * every + panes  (cumulative windows: every == panes).
    following = ((here - windows.panes) // windows.every + 1) * windows.every
    return int(boundaries(windows, np.array([following]))[0])


def closed_until(windows: GridWindows, watermark: int, allowed_lateness: int = 0) -> int:
    """The end of the last closed window: it ended ``allowed_lateness`` or more before ``watermark``.

    ``BEGINNING`` (no window has closed) and ``END`` (all have) are returned unchanged.
    """
    if watermark in (BEGINNING, END):
        return watermark
    reached = pane_indices(windows, np.array([watermark - allowed_lateness]))
    if not windows.cumulative:
        reached = np.floor_divide(reached - windows.panes, windows.every) * windows.every + windows.panes
    return int(boundaries(windows, reached)[0])


def last_ends(windows: GridWindows, panes: Integers) -> Integers:
    """The end of the last window of each pane, by the start of the pane."""
    distinct, ranks = np.unique(panes, return_inverse=True)
    numbers = pane_indices(windows, distinct)
    return boundaries(windows, np.floor_divide(numbers, windows.every) * windows.every + windows.panes)[ranks]


@dataclass(frozen=True)
class Occupied:
    """Windows of keys: window ``i`` is ``[starts[i], ends[i])`` and contains rows ``firsts[i]`` up to ``lasts[i]``."""

    firsts: Integers
    lasts: Integers
    starts: Integers
    ends: Integers

    def where(self, chosen: npt.NDArray[np.bool_]) -> Occupied:
        """The windows where the mask is true."""
        return Occupied(self.firsts[chosen], self.lasts[chosen], self.starts[chosen], self.ends[chosen])


def alone(windows: GridWindows, panes: Integers) -> Occupied:
    """One window for each row, where the pane of a row is its window (``one_per_row``)."""
    rows = np.arange(len(panes))
    return Occupied(rows, rows + 1, panes, last_ends(windows, panes))


def occupied(windows: GridWindows, keys: Integers, panes: Integers, after: int, until: int) -> Occupied:
    """The windows that contain rows and end after ``after`` and at most at ``until``, sorted by end, start and key.

    The rows are sorted by key and pane. ``keys``: numbers of keys, ascending; ``panes``: the start of the row's pane.
    """
    distinct, ranks = np.unique(panes, return_inverse=True)
    found = assigned(windows, distinct)
    bounds = np.unique(np.stack([found.ends, found.starts]), axis=1)
    ends, starts = bounds[:, (bounds[0] > after) & (bounds[0] <= until)]
    # A window is found at its first row: windows that begin after the previous row of the same key, at most at this
    # row, and have not ended. Both the starts and the ends of the sorted windows ascend.
    before = np.full(len(panes), BEGINNING)
    before[1:] = np.where(keys[1:] == keys[:-1], panes[:-1], BEGINNING)
    low = np.maximum(np.searchsorted(starts, before, side="right"), np.searchsorted(ends, panes, side="right"))
    counts = np.maximum(np.searchsorted(starts, panes, side="right") - low, 0)
    firsts, step = expanded(counts)
    number = low[firsts] + step
    code = keys * len(distinct) + ranks  # ascending; the rows of a window are below the code of its end
    lasts = np.searchsorted(code, keys[firsts] * len(distinct) + np.searchsorted(distinct, ends[number]))
    order = np.argsort(number, kind="stable")
    return Occupied(firsts[order], lasts[order], starts[number][order], ends[number][order])


def expanded(counts: Integers) -> tuple[Integers, Integers]:
    """``counts[i]`` times ``i``, and for each ``i`` the numbers 0, 1, .. in a second array."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


def _nominal_panes(grid: CalendarGrid, days: Integers) -> Integers:
    """The numbers of the panes of shifted local days."""
    if grid.days:
        return np.unique(np.floor_divide(days - grid.origin, grid.days))
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    return np.unique(np.floor_divide(months, grid.months))


def _calendar_boundaries(grid: CalendarGrid, indices: Integers) -> Integers:
    return np.fromiter((_calendar_boundary(grid, index) for index in indices.tolist()), np.int64, len(indices))


@lru_cache(maxsize=65_536)
def _calendar_boundary(grid: CalendarGrid, index: int) -> int:
    try:
        if grid.days:
            day = index * grid.days + grid.origin
        else:
            year, month = divmod(index * grid.months, 12)
            day = date(1970 + year, month + 1, 1).toordinal() - _FIRST_DAY
        local = _UNIX_EPOCH + timedelta(days=day, microseconds=grid.shift)
        return _instant(local, ZoneInfo(grid.zone))
    except (OverflowError, ValueError):
        raise InvalidInput(
            f"A time is in a window that begins or ends outside the years 1 to 9999, the range of calendars (zone "
            f"{grid.zone!r}). Filter such rows out, or reject them: with_watermark(.., max_ahead='1 day')."
        ) from None


def _instant(local: datetime, zone: ZoneInfo) -> int:
    """The instant of a local time: the earlier one if it exists twice; a skipped time is later by the length of the
    gap."""
    return (local.replace(tzinfo=zone).astimezone(UTC).replace(tzinfo=None) - _UNIX_EPOCH) // _MICROSECOND
