"""Rows of open windows in state, each once by key and pane with how often it came, and the windows that close."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import END
from epochal.declarations.windows import GridWindows
from epochal.state.access import TableAccess
from epochal.state.table import StateTable
from epochal.tasks.calls import KEY_GROUP
from epochal.tasks.chunks import Chunk
from epochal.tasks.key_blocks import KeyBlocks, key_numbers, of_groups
from epochal.tasks.operator import Subtask
from epochal.tasks.row_digests import row_digests
from epochal.tasks.slices import delta_rows
from epochal.tasks.values import column_of
from epochal.tasks.windows import (
    Integers,
    assigned,
    closed_until,
    expanded,
    last_ends,
    late_before,
    occupied,
    times_of,
    timestamps,
)

DIGEST: Final = "_digest"
COUNT: Final = "_count"


@dataclass(frozen=True)
class ClosedWindow:
    """One window and its rows, of all keys of some key groups: ``chunk``, in the order of key and ``order_by``."""

    start: int
    end: int
    chunk: Chunk


class WindowRows:
    """The rows of one subtask's windows in one epoch. ``table``: of :func:`epochal.operators.panes.pane_table`, its
    values the columns of the rows and ``_count``, its sub-key ``_digest``."""

    def __init__(
        self, subtask: Subtask, table: StateTable, windows: GridWindows, allowed_lateness: int, batch_rows: int
    ) -> None:
        self._subtask = subtask
        self._table = table
        self._windows = windows
        self._lateness = allowed_lateness
        self._batch_rows = batch_rows
        marks, owned = subtask.watermarks, subtask.ownership
        self._after, self._until = (closed_until(windows, mark, allowed_lateness) for mark in (marks.late, marks.fire))
        self._since, self._open_from = (
            late_before(windows, mark, allowed_lateness) for mark in (marks.late, marks.fire)
        )
        self._groups = table.scope.groups_read(owned.subtask, owned.parallelism, owned.max_parallelism)
        self._access = TableAccess(table, subtask.transaction.view(table.id), owned.max_parallelism)
        group = pa.field(KEY_GROUP, pa.int32(), nullable=False)
        names = table.value_schema.names
        self._columns = pa.schema([table.value_schema.field(name) for name in names[: names.index(COUNT)]])
        count = table.value_schema.field(COUNT)
        self._schema = pa.schema([group, *table.key_schema, *self._columns, count])

    def taken(self, slice: pa.Table) -> pa.Table:
        """The epoch's rows, with those that are the same in state, each once. What stays open is staged.

        ``slice``: the columns of rows and key, ``_kg``, and the start of the pane under the name of the table's time.
        """
        table = self._table
        assert table.time is not None  # windows have one
        groups = column_of(slice, KEY_GROUP).cast(pa.int32())
        owners = slice.select([table.time.name, *table.owner_schema.names])
        digests = row_digests(slice, self._columns)
        keys = pa.table([*owners.columns, digests], names=table.key_schema.names).cast(table.key_schema)
        same = key_numbers(keys)
        counts = np.bincount(same) if len(same) else np.zeros(0, np.int64)
        _, firsts = np.unique(same, return_index=True)
        once = pa.array(firsts)
        keys, groups = keys.take(once), groups.take(once)
        encoded = self._access.encoded(keys)
        found, old = self._access.get_encoded(encoded, groups.to_numpy(zero_copy_only=False))
        before = pc.fill_null(column_of(old, COUNT), 0).to_numpy(zero_copy_only=False)
        rows = slice.select(self._columns.names).cast(self._columns).take(once)
        new = pa.table([groups, *keys.columns, *rows.columns, pa.array(counts + before)], schema=self._schema)
        self._stored = encoded.filter(pa.array(found))
        self._starts = times_of(column_of(keys, table.time.name))
        self._stage(new.filter(pa.array(self._starts >= self._open_from)))
        self._wait()
        return new

    def closed(self, new: pa.Table, order_by: tuple[str, ...]) -> Iterator[ClosedWindow]:
        """The windows that close in this epoch, of some key groups after the others, in the order of their ends."""
        if self._until == self._after:
            return
        new = new.filter(pa.array((self._starts >= self._since) & (self._starts < self._until)))
        groups = column_of(new, KEY_GROUP).to_numpy(zero_copy_only=False)
        blocks = KeyBlocks(self._groups, self._batch_rows)
        for block in blocks:
            parts = [new.filter(pa.array(of_groups(groups, block)))]
            for rows in self._access.due(block, self._since, self._until):
                again = pc.is_in(self._access.encoded(rows), value_set=self._stored)
                parts.append(rows.select(self._schema.names).filter(pc.invert(again)))
            rows = pa.concat_tables(parts).combine_chunks()
            blocks.held = rows.num_rows
            if rows.num_rows:
                yield from self._windows_of(rows, order_by)

    def _windows_of(self, rows: pa.Table, order_by: tuple[str, ...]) -> Iterator[ClosedWindow]:
        assert self._table.time is not None  # windows have one
        panes = times_of(column_of(rows, self._table.time.name))
        keys = key_numbers(rows.select(self._table.owner_schema.names))
        order = np.lexsort((panes, keys))
        found = occupied(self._windows, keys[order], panes[order], self._after, self._until)
        if not len(found.ends):
            return
        windows, step = expanded(found.lasts - found.firsts)
        members = order[found.firsts[windows] + step]
        members = members[np.lexsort((_ranks(rows, (*order_by, DIGEST))[members], windows))]
        counts = column_of(rows, COUNT).to_numpy()
        apart = np.flatnonzero((found.ends[1:] != found.ends[:-1]) | (found.starts[1:] != found.starts[:-1])) + 1
        for first, last in pairwise([0, *apart.tolist(), len(found.ends)]):
            begin, end = np.searchsorted(windows, [first, last])
            often = np.repeat(np.arange(begin, end), counts[members[begin:end]])
            chunk = rows.take(pa.array(members[often])).combine_chunks()
            starts = np.flatnonzero(np.diff(windows[often], prepend=-1))
            yield ClosedWindow(int(found.starts[first]), int(found.ends[first]), Chunk(chunk, starts))

    def _stage(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        table, (_, *columns) = self._table, rows.columns
        if len(table.value) > len(self._columns) + 1:
            assert table.time is not None  # windows have one
            columns.append(timestamps(last_ends(self._windows, times_of(column_of(rows, table.time.name)))))
        groups = column_of(rows, KEY_GROUP)
        self._subtask.transaction.stage(table.id, delta_rows(table, groups, "put", columns))

    def _wait(self) -> None:
        if self._open_from == END:
            return
        stored = self._access.earliest(self._groups, self._open_from)
        still = self._starts[self._starts >= self._open_from]
        firsts = ([] if stored is None else [stored]) + ([int(still.min())] if len(still) else [])
        if firsts:
            ends = assigned(self._windows, np.array([min(firsts)])).ends
            self._subtask.due.add(event=int(ends[ends > self._until].min()) + self._lateness)


def _ranks(rows: pa.Table, columns: tuple[str, ...]) -> Integers:
    """The place of each row in the order of these columns, nulls first."""
    keys: dict[str, pa.ChunkedArray] = {}
    for number, name in enumerate(columns):
        keys |= {f"{number} is there": rows[name].is_valid(), f"{number}": rows[name]}
    order = pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])
    ranks = np.empty(rows.num_rows, np.int64)
    ranks[order.to_numpy()] = np.arange(rows.num_rows)
    return ranks
