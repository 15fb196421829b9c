"""Windows on a grid in one epoch of a subtask: closed before, closing in it, and open after it; blocks of key
groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.declarations.windows import GridWindows
from epochal.state.access import TableAccess
from epochal.state.column_bytes import Mask
from epochal.state.keygroups import Groups
from epochal.state.table import StateTable
from epochal.state.watermarks import END
from epochal.tasks.operator import Subtask
from epochal.tasks.windows import Integers, assigned, closed_until, late_before


class OpenWindows:
    """The open windows of a subtask in one epoch.

    ``table``: the state of their panes, by time. ``starts`` in methods: the starts of panes with new rows. ``access``:
    to the table in all key ``groups`` of the subtask.
    """

    def __init__(self, subtask: Subtask, table: StateTable, windows: GridWindows, allowed_lateness: int) -> None:
        self._subtask = subtask
        self._windows = windows
        self._lateness = allowed_lateness
        marks, owned = subtask.watermarks, subtask.ownership
        self.after = closed_until(windows, marks.late, allowed_lateness)
        """Windows with an end up to this time had closed before the epoch."""
        self.until = closed_until(windows, marks.fire, allowed_lateness)
        """Windows with an end up to this time are closed after the epoch."""
        self._since = late_before(windows, marks.late, allowed_lateness)
        """The start of the first window that had not closed before the epoch."""
        self._open_from = late_before(windows, marks.fire, allowed_lateness)
        """The start of the first window that is open after the epoch."""
        self.groups = table.scope.groups_read(owned.subtask, owned.parallelism, owned.max_parallelism)
        self.access = TableAccess(table, subtask.transaction.view(table.id), owned.max_parallelism)

    @property
    def close(self) -> bool:
        """True if windows can close in this epoch."""
        return self.until != self.after

    def closing(self, starts: Integers) -> Mask:
        """A mask of the panes that may be part of windows closing in this epoch."""
        mask: Mask = (starts >= self._since) & (starts < self.until)
        return mask

    def staying(self, starts: Integers) -> Mask:
        """A mask of the panes that are part of windows open after the epoch."""
        mask: Mask = starts >= self._open_from
        return mask

    def due(self, groups: Sequence[int] | Groups, batch_rows: int) -> Iterator[pa.Table]:
        """The stored rows of windows that close in this epoch, in these key groups, as :meth:`TableAccess.due`."""
        return self.access.due(groups, self._since, self.until, batch_rows)

    def wait(self, starts: Integers) -> None:
        """Add the time at which the next window closes, of stored and new panes."""
        if self._open_from == END:
            return
        stored = self.access.earliest(self.groups, self._open_from)
        still = starts[self.staying(starts)]
        firsts = ([] if stored is None else [stored]) + ([int(still.min())] if len(still) else [])
        if firsts:
            ends = assigned(self._windows, np.array([min(firsts)])).ends
            self._subtask.due.add(event=int(ends[ends > self.until].min()) + self._lateness)


class KeyBlocks:
    """Blocks of key groups, in order, so that all rows of a key are in memory together, but not all keys.

    The consumer sets ``held``, the number of rows of a block, before it takes the next block, whose size is adapted to
    about ``rows`` rows.
    """

    def __init__(self, groups: Sequence[int], rows: int) -> None:
        self._groups = np.array(groups, np.int32)
        self._rows = rows
        self.held = 0

    def __iter__(self) -> Iterator[npt.NDArray[np.int32]]:
        first, count = 0, 1
        while first < len(self._groups):
            self.held = 0
            yield self._groups[first : first + count]
            first += count
            count = max(1, min(8 * count, count * self._rows // max(1, self.held)))


def of_groups(groups: npt.NDArray[np.int32], block: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """A mask of the rows in the key groups of a block."""
    within = np.zeros(int(max(groups.max(initial=0), block.max(initial=0))) + 1, np.bool_)
    within[block] = True
    return within[groups]
