"""T2 of aggregates over windows on a grid: partials of an epoch, one per key and pane, merge into state; windows are
combined from panes.

State is a time-ordered table of panes: the panes of closing windows are a range of it, and closed panes expire. A pane
whose windows all close in the epoch of its rows is never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.windows import WINDOW_END, WINDOW_START, Emit, GridWindows
from epochal.operators.windows.open_windows import KeyBlocks, OpenWindows, of_groups
from epochal.state.table import Column, StateTable
from epochal.state.type_names import KeyText
from epochal.state.watermarks import END
from epochal.tasks.keys import key_shown
from epochal.tasks.operator import Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.row_runs import Runs, reduced
from epochal.tasks.slices import SliceKeys, delta_rows, gathered, key_numbers
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of
from epochal.tasks.windows import (
    Integers,
    Occupied,
    alone,
    assigned,
    expanded,
    last_ends,
    occupied,
    panes_of,
    times_of,
    timestamps,
)

BATCH_ROWS: Final = 1 << 17
WINDOW: Final = (Column(name=WINDOW_START, type="timestamp"), Column(name=WINDOW_END, type="timestamp"))


@dataclass(frozen=True)
class WindowAggregateWork:
    """Output: key columns, ``window_start``, ``window_end``, merged partials and the columns that the plan computes.

    The input has partials by key and pane; the start of the pane has the name of the table's time. Raises
    ``EpochAborted`` for a value that exceeds its type, ``AuthorError`` for errors of an author's merge.
    """

    plan: Merging
    table: StateTable
    windows: GridWindows
    allowed_lateness: int
    emit: Emit
    batch_rows: int = BATCH_ROWS
    """The approximate number of rows of panes that are combined at a time."""
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        epoch = _Epoch(self, subtask)
        new = epoch.merged(gathered(rows))
        epoch.stage(new)
        epoch.wait(new)
        yield from epoch.changed(new) if self.emit == "updates" else epoch.closed(new)


@dataclass(frozen=True)
class _Panes:
    """Rows of panes: ``_kg``, the state table's full key, the partials. ``starts``: microseconds.

    ``stored``: a mask of the panes that were in state before.
    """

    rows: pa.Table
    starts: Integers
    stored: np.ndarray

    def take(self, positions: np.ndarray) -> _Panes:
        """The panes at these positions, or where the mask is true."""
        if positions.dtype == np.bool_:
            if positions.all():
                return self
            positions = np.flatnonzero(positions)
        return _Panes(self.rows.take(pa.array(positions)), self.starts[positions], self.stored[positions])

    def and_(self, rows: pa.Table) -> _Panes:
        """These panes, followed by the panes of stored rows."""
        stored = np.ones(rows.num_rows, np.bool_)
        return _Panes(
            pa.concat_tables([self.rows, rows]).combine_chunks(),
            np.concatenate([self.starts, times_of(column_of(rows, self.rows.column_names[1]))]),
            np.concatenate([self.stored, stored]),
        )


class _Epoch:
    """The windows of one subtask in one epoch."""

    def __init__(self, work: WindowAggregateWork, subtask: Subtask) -> None:
        self._work = work
        self._subtask = subtask
        self._author = AuthorCall(lambda: f"Operator {subtask.operator!r}, merging")
        table = work.table
        self._open = OpenWindows(subtask, table, work.windows, work.allowed_lateness)
        group = pa.field(KEY_GROUP, pa.int32(), nullable=False)
        self._schema = pa.schema([group, *table.key_schema, *work.plan.table.value_schema])

    @property
    def _partials(self) -> list[str]:
        return list(self._work.plan.table.value_schema.names)

    def merged(self, slice: pa.Table) -> _Panes:
        """The epoch's partials, merged with the stored partials of the same panes."""
        table = self._work.table
        assert table.time is not None  # windows have one
        keys = SliceKeys.of(self._subtask, table, slice)
        starts = times_of(column_of(keys.rows, table.time.name))
        found, old = keys.stored()
        self._encoded = keys.encoded
        values = self._merge(found, old.select(self._partials), slice.select(self._partials), keys.shown)
        rows = pa.table([keys.groups, *keys.rows.columns, *values.columns], schema=self._schema)
        return _Panes(rows, starts, found)

    def stage(self, new: _Panes) -> None:
        """Stage the panes that are open at the end of the epoch."""
        still = new.take(self._open.staying(new.starts))
        if not still.rows.num_rows:
            return
        table = self._work.table
        _, *columns = still.rows.columns
        if len(table.value) > len(self._partials):
            columns.append(timestamps(last_ends(self._work.windows, still.starts)))
        groups = column_of(still.rows, KEY_GROUP)
        self._subtask.transaction.stage(table.id, delta_rows(table, groups, "put", columns))

    def wait(self, new: _Panes) -> None:
        """Add the time at which the next window closes. With updates, none must be waited for: state expires."""
        if self._work.emit == "final":
            self._open.wait(new.starts)

    def closed(self, new: _Panes) -> Iterator[pa.RecordBatch]:
        """The windows that close in this epoch, each once."""
        if not self._open.close:
            return
        closing = self._open.closing(new.starts)
        for panes in self._with_stored(new.take(closing), self._encoded.filter(pa.array(closing & new.stored))):
            yield from self._combined(panes, self._open.until)

    def changed(self, new: _Panes) -> Iterator[pa.RecordBatch]:
        """The windows with new rows that had not closed before this epoch."""
        for panes in self._of_blocks(new):
            if self._work.windows.one_per_row:
                yield from self._combined(panes, END)
            else:
                yield from self._combined(panes.and_(self._beside(panes)), END, len(panes.starts))

    def _with_stored(self, new: _Panes, again: pa.BinaryArray) -> Iterator[_Panes]:
        """``new`` and the stored panes in the same range of time, for a block of key groups at a time, or in smaller
        parts if each pane is a window.

        ``again``: the encoded keys of the panes in ``new`` that are also stored.
        """
        if self._work.windows.one_per_row:
            yield new
            for rows in self._open.due(self._open.groups, self._work.batch_rows):
                yield new.take(np.zeros(0, np.int64)).and_(self._without(rows.select(self._schema.names), again))
            return
        new_groups = column_of(new.rows, KEY_GROUP).to_numpy(zero_copy_only=False)
        blocks = KeyBlocks(self._open.groups, self._work.batch_rows)
        for block in blocks:
            found = list(self._open.due(block, self._work.batch_rows))
            panes = new.take(of_groups(new_groups, block))
            if found:
                stored = pa.concat_tables(found).select(self._schema.names).combine_chunks()
                panes = panes.and_(self._without(stored, again))
            blocks.held = len(panes.starts)
            yield panes

    def _of_blocks(self, new: _Panes) -> Iterator[_Panes]:
        """``new``, split by key groups into parts of bounded size."""
        windows = self._work.windows
        beside = 1 if windows.one_per_row else 2 * windows.panes
        parts = -(-len(new.starts) * beside // self._work.batch_rows)
        if parts <= 1:
            yield new
            return
        groups = column_of(new.rows, KEY_GROUP).to_numpy(zero_copy_only=False)
        for block in np.array_split(np.array(self._open.groups), min(parts, len(self._open.groups))):
            yield new.take(of_groups(groups, block))

    def _without(self, rows: pa.Table, keys: pa.BinaryArray) -> pa.Table:
        if not len(keys):
            return rows
        return rows.filter(pc.invert(pc.is_in(self._open.access.encoded(rows), value_set=keys)))

    def _beside(self, panes: _Panes) -> pa.Table:
        """The stored panes of all windows of ``panes``, except ``panes``."""
        windows, table = self._work.windows, self._work.table
        distinct, ranks = np.unique(panes.starts, return_inverse=True)
        mine = assigned(windows, distinct)
        still = mine.ends > self._open.after
        of_window, starts = panes_of(windows, mine.starts[still], mine.ends[still])
        # For each distinct pane the panes of its windows; for each row those of its pane.
        pane, times = np.unique(np.stack([mine.rows[still][of_window], starts]), axis=1)
        counts = np.bincount(pane, minlength=len(distinct))
        begins = np.cumsum(counts) - counts
        rows, step = expanded(counts[ranks])
        times, time_ranks = np.unique(times[begins[ranks[rows]] + step], return_inverse=True)
        numbers = key_numbers(panes.rows.select(table.owner_schema.names))
        codes, firsts = np.unique(numbers[rows] * len(times) + time_ranks, return_index=True)
        own = numbers * len(times) + np.searchsorted(times, panes.starts)
        others = firsts[~np.isin(codes, own)]
        beside = panes.rows.take(pa.array(rows[others]))
        starts_beside = timestamps(times[time_ranks[others]])
        keys = pa.table([starts_beside, *beside.select(table.owner_schema.names).columns], schema=table.key_schema)
        groups = column_of(beside, KEY_GROUP)
        found, values = self._open.access.get(keys, groups.to_numpy(zero_copy_only=False))
        columns = [groups, *keys.columns, *values.select(self._partials).columns]
        return pa.table(columns, schema=self._schema).filter(pa.array(found))

    def _combined(self, panes: _Panes, until: int, changed: int | None = None) -> Iterator[pa.RecordBatch]:
        """The windows of ``panes`` that were open before this epoch and end at most at ``until``.

        ``panes`` are all panes of their keys. ``changed``: only windows with one of the first ``changed`` panes.
        """
        windows, rows = self._work.windows, panes.rows
        if not rows.num_rows:
            return
        if windows.one_per_row:
            found = alone(windows, panes.starts)
            yield from self._output(rows, rows.select(self._partials), found)
            return
        keys = key_numbers(rows.select(self._work.table.owner_schema.names))
        order = np.lexsort((panes.starts, keys))
        rows = rows.take(pa.array(order)).combine_chunks()
        found = occupied(windows, keys[order], panes.starts[order], self._open.after, until)
        if changed is not None:
            before = np.concatenate([[0], np.cumsum(order < changed)])
            found = found.where(before[found.lasts] > before[found.firsts])
        partials = reduced(rows.select(self._partials), Runs(found.firsts, found.lasts), self._merge_all)
        yield from self._output(rows.take(pa.array(found.firsts)), partials, found)

    def _output(self, rows: pa.Table, partials: pa.Table, windows: Occupied) -> Iterator[pa.RecordBatch]:
        schema = self._subtask.output
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        columns |= {WINDOW_START: timestamps(windows.starts), WINDOW_END: timestamps(windows.ends)}
        columns |= dict(zip(partials.column_names, partials.columns, strict=True))
        with self._author:
            owners = rows.select(self._work.table.owner_schema.names)
            computed = self._work.plan.compute(partials.combine_chunks(), partial(key_shown, owners))
        columns |= {column.name: array for column, array in zip(self._work.plan.computed, computed, strict=True)}
        yield from pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema).to_batches()

    def _merge(self, found: np.ndarray, old: pa.Table, new: pa.Table, key: KeyText | None = None) -> pa.Table:
        with self._author:
            return self._work.plan.merge(found, old, new, key)

    def _merge_all(self, one: pa.Table, other: pa.Table) -> pa.Table:
        return self._merge(np.ones(one.num_rows, np.bool_), one, other).combine_chunks()


class Merging(Protocol):
    """Value columns of ``table`` with a merge that is independent of the order of rows, such as those of
    :class:`~epochal.aggregates.plan.AggregationPlan`."""

    @property
    def table(self) -> StateTable: ...

    @property
    def computed(self) -> tuple[Column, ...]:
        """Output columns that are computed from the value columns and not stored."""

    def merge(self, found: npt.NDArray[np.bool_], old: pa.Table, new: pa.Table, key: KeyText | None = None) -> pa.Table:
        """Row i of ``old``, if ``found[i]``, merged with row i of ``new``. ``key``: the key of a row for messages."""

    def compute(self, merged: pa.Table, key: KeyText | None = None) -> list[Any]:
        """The columns ``computed`` of each row of ``merged``."""


class WindowedWork(Protocol):
    """Work whose input has the value columns by key and pane, and whose output has them by key and window."""

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...
