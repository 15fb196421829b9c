"""``top``: the first rows of each key in an order, updated in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.declarations.windows import WINDOW_END, WINDOW_START
from epochal.operators.windows.work import WindowedWork
from epochal.state.lists import ELEMENT, LIST, elements, lengths
from epochal.state.table import Column, StateTable
from epochal.state.type_names import KeyText
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import Integers, SliceKeys, delta_rows, gathered, in_order, key_numbers, numbered_keys
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of

RANK: Final = Column(name="rank", type="int")
BOUNDS = (WINDOW_START, WINDOW_END)


@dataclass(frozen=True)
class TopWork:
    """Output: the ranks of each key whose row has changed, with their new rows. A rank that has a row always keeps one,
    so that these rows are new values of (key, rank)."""

    table: StateTable
    keys: tuple[str, ...]
    """In the spelling of the input, as ``by``."""
    count: int
    by: tuple[str, ...]
    descending: bool
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        if not slice.num_rows:
            return
        codes, of_key = numbered_keys(slice.select(self.keys))
        unique, values = slice.take(pa.array(of_key)), self.table.value_schema
        keys = SliceKeys.of(subtask, self.table, unique, self.keys)
        before = keys.entries()
        both = pa.concat_tables([before.rows.select(values.names), slice.select(values.names).cast(values)])
        had = np.concatenate([column_of(before.rows, RANK.name).to_numpy(), np.zeros(len(codes), np.int32)])
        of_key = np.concatenate([before.owner, codes])
        # Of equal rows, those of the state come first, so that they keep their ranks.
        ordered = in_order(both.combine_chunks(), of_key, self.by, self.descending)
        of_key, had = of_key[ordered], had[ordered]
        ranks = _ranks(of_key)
        changed = np.flatnonzero((ranks <= self.count) & (ranks != had))
        if not len(changed):
            return
        of_key = pa.array(of_key[changed])
        rank = pa.array(ranks[changed], pa.int32())
        columns = [*keys.rows.take(of_key).columns, rank, *both.take(pa.array(ordered[changed])).columns]
        subtask.transaction.stage(self.table.id, delta_rows(self.table, keys.groups.take(of_key), "put", columns))
        yield from pa.Table.from_arrays(columns, schema=subtask.output).to_batches()


def _ranks(of_key: Integers) -> Integers:
    """The position of each row among those of its key, from 1, in rows sorted by key."""
    starts = np.flatnonzero(np.r_[True, of_key[1:] != of_key[:-1]])
    ranks: Integers = np.arange(1, len(of_key) + 1) - np.repeat(starts, np.diff(np.r_[starts, len(of_key)]))
    return ranks


@dataclass(frozen=True)
class BestRows:
    """The first ``count`` rows of each group by ``by``, as one list of structs: the only value column of ``table``."""

    table: StateTable
    count: int
    by: tuple[str, ...]
    descending: bool
    computed: ClassVar[tuple[Column, ...]] = ()

    def merge(self, found: npt.NDArray[np.bool_], old: pa.Table, new: pa.Table, key: KeyText | None = None) -> pa.Table:
        """Row i of ``old`` (null unless ``found[i]``) and of ``new`` are lists of one group."""
        if not found.any():
            return new.cast(self.table.value_schema)
        both = [elements(column_of(side, self._name)) for side in (old, new)]
        rows = pa.concat_tables([self._columns(part) for part in both]).combine_chunks()
        groups = np.concatenate([column_of(part, LIST).to_numpy() for part in both])
        return pa.table([self._lists(rows, groups, new.num_rows)], schema=self.table.value_schema)

    def compute(self, merged: pa.Table, key: KeyText | None = None) -> list[Any]:
        return []

    def of_rows(self, rows: pa.Table, groups: Integers) -> pa.Array:
        """The list of each group. ``rows``: at least the columns of a row; ``groups``: all numbers from 0."""
        return self._lists(rows.select(self.row.names).cast(self.row), groups, int(groups.max(initial=-1)) + 1)

    @cached_property
    def row(self) -> pa.Schema:
        """The columns of the rows in the lists."""
        struct = self.table.value_schema.field(0).type.value_type
        return pa.schema([struct.field(number) for number in range(struct.num_fields)])

    @property
    def _name(self) -> str:
        return self.table.value[0].name

    def rows_of(self, lists: pa.ChunkedArray) -> tuple[Integers, pa.Array, pa.Table]:
        """All rows of some lists: the position of the row's list, its rank in it, from 1, and the row."""
        found = elements(lists)
        counts = lengths(lists)
        ranks = np.arange(1, found.num_rows + 1) - np.repeat(np.cumsum(counts) - counts, counts)
        positions: Integers = column_of(found, LIST).to_numpy()
        return positions, pa.array(ranks, pa.int32()), self._columns(found)

    def _columns(self, found: pa.Table) -> pa.Table:
        """The columns of the structs in the result of :func:`elements`."""
        return pa.Table.from_arrays(column_of(found, ELEMENT).flatten(), schema=self.row)

    def _lists(self, rows: pa.Table, groups: Integers, count: int) -> pa.Array:
        order = in_order(rows, groups, self.by, self.descending)
        sorted_groups = groups[order]
        sizes = np.bincount(sorted_groups, minlength=count)
        ranks = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[sorted_groups]
        best = pa.array(order[ranks < self.count])
        offsets = np.concatenate([[0], np.cumsum(np.minimum(sizes, self.count))])
        columns = [column.combine_chunks() for column in rows.take(best).columns]
        structs = pa.StructArray.from_arrays(columns, fields=list(self.row))
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
        return lists.cast(self.table.value_schema.field(0).type)


@dataclass(frozen=True)
class WindowTopWork:
    """Output: the columns of the key, ``window_start``, ``window_end``, ``rank``, the other columns of the row.

    The lists of two panes merge into one, so the best rows of a window are a windowed aggregate: ``windowed`` merges
    the lists. ``group``: its grouping columns, the key's and the pane's start.
    """

    best: BestRows
    windowed: WindowedWork
    group: tuple[str, ...]
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lists = self._lists(gathered(rows))
        table = self.best.table
        bounds = (subtask.output.field(name) for name in BOUNDS)
        kept = pa.schema([*table.owner_schema, *bounds, *table.value_schema])
        for batch in self.windowed.run(replace(subtask, output=kept), iter([lists])):
            yield from self._ranked(pa.Table.from_batches([batch]), subtask.output)

    def _lists(self, slice: pa.Table) -> pa.RecordBatch:
        """The slice, with one row for each key and pane."""
        groups = slice.select(list(self.group))
        numbers = key_numbers(groups)
        _, firsts = np.unique(numbers, return_index=True)
        once = pa.array(firsts)
        columns = [column_of(slice, KEY_GROUP), *(column_of(groups, name) for name in self.group)]
        arrays = [*(column.take(once) for column in columns), self.best.of_rows(slice, numbers)]
        return pa.RecordBatch.from_arrays(arrays, names=[KEY_GROUP, *self.group, self.best.table.value[0].name])

    def _ranked(self, windows: pa.Table, output: pa.Schema) -> Iterator[pa.RecordBatch]:
        positions, ranks, rows = self.best.rows_of(windows.column(windows.num_columns - 1))
        of_window = windows.select(windows.column_names[:-1]).take(pa.array(positions))
        columns = [*of_window.columns, ranks, *rows.columns]
        yield from pa.Table.from_arrays(columns, schema=output).to_batches()
