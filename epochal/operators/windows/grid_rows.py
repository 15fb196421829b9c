"""The rows of open windows on a grid in state, each once with its count, and the closing windows with their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.windows import GridWindows
from epochal.operators.windows.open_windows import KeyBlocks, OpenWindows, of_groups
from epochal.state.access import TableAccess
from epochal.state.table import StateTable
from epochal.tasks.keys import Chunk
from epochal.tasks.operator import Subtask
from epochal.tasks.row_digests import row_digests
from epochal.tasks.slices import delta_rows, key_numbers
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of
from epochal.tasks.windows import Integers, expanded, last_ends, occupied, times_of, timestamps

DIGEST: Final = "_digest"
COUNT: Final = "_count"


@dataclass(frozen=True)
class ClosedWindows:
    """Closed windows: run ``i`` of ``chunk`` has the rows of window ``[starts[i], ends[i])`` of a key.

    Rows have the columns of state, those of the key and ``_kg``, and are sorted within each run as requested. Several
    windows may have the same key.
    """

    chunk: Chunk
    starts: Integers
    ends: Integers


class WindowRows(Protocol):
    """Storage of the rows of open windows. Frozen and serialisable, like the work that contains it."""

    def closed(self, subtask: Subtask, slice: pa.Table, order_by: tuple[str, ...]) -> Iterator[ClosedWindows]:
        """The windows that close in this epoch. Stages the rows of ``slice`` that stay, if read to the end."""


@dataclass(frozen=True)
class NewRows:
    """The distinct rows of an epoch: ``rows`` has ``_kg``, the full key, the columns and the new ``_count``.

    ``came``: the count of each in this epoch. ``stored``: the encoded keys of those that are in state.
    """

    rows: pa.Table
    came: Integers
    stored: pa.BinaryArray

    @classmethod
    def of(cls, table: StateTable, access: TableAccess, slice: pa.Table) -> NewRows:
        """``slice`` has the columns of a row, the key, ``_kg``, and the sub-key without its last column,
        ``_digest``."""
        groups = column_of(slice, KEY_GROUP).cast(pa.int32())
        columns = row_columns(table)
        owners = slice.select(table.key_schema.names[:-1])
        digests = row_digests(slice, columns)
        keys = pa.table([*owners.columns, digests], names=table.key_schema.names).cast(table.key_schema)
        same = key_numbers(keys)
        came = np.bincount(same) if len(same) else np.zeros(0, np.int64)
        _, firsts = np.unique(same, return_index=True)
        once = pa.array(firsts)
        keys, groups = keys.take(once), groups.take(once)
        encoded = access.encoded(keys)
        found, old = access.get_encoded(encoded, groups.to_numpy(zero_copy_only=False))
        before = pc.fill_null(column_of(old, COUNT), 0).to_numpy(zero_copy_only=False)
        rows = slice.select(columns.names).cast(columns).take(once)
        arrays = [groups, *keys.columns, *rows.columns, pa.array(came + before)]
        return cls(pa.table(arrays, schema=row_schema(table)), came, encoded.filter(pa.array(found)))

    def without_these(self, rows: pa.Table, encoded: pa.BinaryArray) -> pa.Table:
        """The stored ``rows`` that are not among the new ones. ``encoded``: their keys."""
        again = pc.is_in(encoded, value_set=self.stored)
        return rows.select(self.rows.column_names).filter(pc.invert(again))


def row_columns(table: StateTable) -> pa.Schema:
    """The columns of a row: the values before ``_count``."""
    names = table.value_schema.names
    return pa.schema([table.value_schema.field(name) for name in names[: names.index(COUNT)]])


def row_schema(table: StateTable) -> pa.Schema:
    """``_kg``, the full key, the columns of a row, ``_count``."""
    group = pa.field(KEY_GROUP, pa.int32(), nullable=False)
    return pa.schema([group, *table.key_schema, *row_columns(table), table.value_schema.field(COUNT)])


def in_windows(
    rows: pa.Table, members: Integers, windows: Integers, bounds: Bounds, order_by: tuple[str, ...], batch_rows: int
) -> Iterator[ClosedWindows]:
    """Windows with their rows: row ``members[i]`` of ``rows`` is in window ``windows[i]`` of ``bounds``.

    Yields about ``batch_rows`` rows at a time, each repeated by its count; more if a single window has more.
    """
    order = np.lexsort((_ranks(rows, (*order_by, DIGEST))[members], windows))
    members, windows = members[order], windows[order]
    often = column_of(rows, COUNT).to_numpy()[members]
    sizes = np.bincount(windows, often, len(bounds.starts)).astype(np.int64)
    for first, last in pieces(sizes, batch_rows):
        begin, end = np.searchsorted(windows, [first, last])
        chunk = rows.take(pa.array(np.repeat(members[begin:end], often[begin:end]))).combine_chunks()
        begins = np.cumsum(sizes[first:last]) - sizes[first:last]
        yield ClosedWindows(Chunk(chunk, begins), bounds.starts[first:last], bounds.ends[first:last])


def pieces(sizes: Integers, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive items with a total size of about ``most`` each."""
    if len(sizes):
        ends = np.flatnonzero(np.diff((np.cumsum(sizes) - 1) // most)) + 1
        yield from pairwise([0, *ends.tolist(), len(sizes)])


class Bounds(Protocol):
    """Window ``i`` is ``[starts[i], ends[i])``."""

    @property
    def starts(self) -> Integers: ...

    @property
    def ends(self) -> Integers: ...


@dataclass(frozen=True)
class GridWindowRows:
    """The rows of windows on a grid, by key and pane.

    ``table``: state table of :func:`epochal.operators.windows.panes.pane_table`, its values the columns of the rows and
    ``_count``, its sub-key ``_digest``."""

    table: StateTable
    windows: GridWindows
    allowed_lateness: int
    batch_rows: int

    def closed(self, subtask: Subtask, slice: pa.Table, order_by: tuple[str, ...]) -> Iterator[ClosedWindows]:
        """``slice`` has the start of the pane in a column with the name of the table's time."""
        epoch = _Epoch(self, subtask, slice)
        epoch.stage()
        epoch.wait()
        yield from epoch.closed(order_by)


class _Epoch:
    """The rows of one subtask's windows in one epoch."""

    def __init__(self, kept: GridWindowRows, subtask: Subtask, slice: pa.Table) -> None:
        self._kept = kept
        self._subtask = subtask
        table = kept.table
        self._open = OpenWindows(subtask, table, kept.windows, kept.allowed_lateness)
        self._new = NewRows.of(table, self._open.access, slice)
        self._starts = self._panes(self._new.rows)

    def stage(self) -> None:
        """Stage the rows of windows that are open at the end of the epoch."""
        rows, table = self._new.rows.filter(pa.array(self._open.staying(self._starts))), self._kept.table
        if not rows.num_rows:
            return
        _, *columns = rows.columns
        if len(table.value) > len(row_columns(table)) + 1:
            columns.append(timestamps(last_ends(self._kept.windows, self._panes(rows))))
        groups = column_of(rows, KEY_GROUP)
        self._subtask.transaction.stage(table.id, delta_rows(table, groups, "put", columns))

    def wait(self) -> None:
        """Add the time at which the next window closes."""
        self._open.wait(self._starts)

    def closed(self, order_by: tuple[str, ...]) -> Iterator[ClosedWindows]:
        """The windows that close in this epoch, by block of key groups, sorted by end within a block."""
        if not self._open.close:
            return
        new = self._new.rows.filter(pa.array(self._open.closing(self._starts)))
        groups = column_of(new, KEY_GROUP).to_numpy(zero_copy_only=False)
        blocks = KeyBlocks(self._open.groups, self._kept.batch_rows)
        for block in blocks:
            parts = [new.filter(pa.array(of_groups(groups, block)))]
            for rows in self._open.due(block, self._kept.batch_rows):
                parts.append(self._new.without_these(rows, self._open.access.encoded(rows)))
            rows = pa.concat_tables(parts).combine_chunks()
            blocks.held = rows.num_rows
            if rows.num_rows:
                yield from self._windows_of(rows, order_by)

    def _windows_of(self, rows: pa.Table, order_by: tuple[str, ...]) -> Iterator[ClosedWindows]:
        panes = self._panes(rows)
        keys = key_numbers(rows.select(self._kept.table.owner_schema.names))
        order = np.lexsort((panes, keys))
        found = occupied(self._kept.windows, keys[order], panes[order], self._open.after, self._open.until)
        windows, step = expanded(found.lasts - found.firsts)
        yield from in_windows(
            rows, order[found.firsts[windows] + step], windows, found, order_by, self._kept.batch_rows
        )

    def _panes(self, rows: pa.Table) -> Integers:
        time = self._kept.table.time
        assert time is not None  # windows have one
        return times_of(column_of(rows, time.name))


def _ranks(rows: pa.Table, columns: tuple[str, ...]) -> Integers:
    """The position of each row in the order of these columns, nulls first."""
    keys: dict[str, pa.ChunkedArray] = {}
    for number, name in enumerate(columns):
        keys |= {f"{number} is valid": rows[name].is_valid(), f"{number}": rows[name]}
    order = pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])
    ranks = np.empty(rows.num_rows, np.int64)
    ranks[order.to_numpy()] = np.arange(rows.num_rows)
    return ranks
