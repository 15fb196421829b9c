"""Windows on a grid in one epoch of a subtask: which had closed before it, which close in it, and when the next."""

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
    """``table``: what is kept of their panes, by time. ``starts``, of its methods: where panes with new rows begin.

    ``access``: to the table in all key ``groups`` of the subtask.
    """

    def __init__(self, subtask: Subtask, table: StateTable, windows: GridWindows, allowed_lateness: int) -> None:
        self._subtask = subtask
        self._windows = windows
        self._lateness = allowed_lateness
        marks, owned = subtask.watermarks, subtask.ownership
        self.after = closed_until(windows, marks.late, allowed_lateness)
        """Windows that end at most there had closed before."""
        self.until = closed_until(windows, marks.fire, allowed_lateness)
        """Windows that end at most there have closed when the epoch is over."""
        self._since = late_before(windows, marks.late, allowed_lateness)
        """Where the first window begins that had not closed before."""
        self._open_from = late_before(windows, marks.fire, allowed_lateness)
        """Where the first window begins that is open when the epoch is over."""
        self.groups = table.scope.groups_read(owned.subtask, owned.parallelism, owned.max_parallelism)
        self.access = TableAccess(table, subtask.transaction.view(table.id), owned.max_parallelism)

    @property
    def close(self) -> bool:
        """Whether any can close in this epoch."""
        return self.until != self.after

    def closing(self, starts: Integers) -> Mask:
        """Which panes may be part of windows that close in this epoch."""
        mask: Mask = (starts >= self._since) & (starts < self.until)
        return mask

    def staying(self, starts: Integers) -> Mask:
        """Which panes are part of windows that are open when the epoch is over."""
        mask: Mask = starts >= self._open_from
        return mask

    def due(self, groups: Sequence[int] | Groups, batch_rows: int) -> Iterator[pa.Table]:
        """What is stored of windows that close in this epoch, in these key groups, as :meth:`TableAccess.due`."""
        return self.access.due(groups, self._since, self.until, batch_rows)

    def wait(self, starts: Integers) -> None:
        """Say when the next window closes, of all that is kept and what comes to it."""
        if self._open_from == END:
            return
        stored = self.access.earliest(self.groups, self._open_from)
        still = starts[self.staying(starts)]
        firsts = ([] if stored is None else [stored]) + ([int(still.min())] if len(still) else [])
        if firsts:
            ends = assigned(self._windows, np.array([min(firsts)])).ends
            self._subtask.due.add(event=int(ends[ends > self.until].min()) + self._lateness)


class KeyBlocks:
    """Blocks of key groups, in their order, each of as many as held about ``rows`` rows before.

    Whoever takes a block says what it ``held`` before the next one is taken.
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
    """Which rows are of one of the key groups of a block."""
    within = np.zeros(int(max(groups.max(initial=0), block.max(initial=0))) + 1, np.bool_)
    within[block] = True
    return within[groups]
