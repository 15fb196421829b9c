"""The keys to call in a subtask: keys with rows, and keys with due timers, in bounded memory.

Rows are sorted by key group and key, timers by key group. All due timers of a key group are in memory as Arrow tables;
only those of a chunk as Python objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import EpochAborted
from epochal.operators.process.timers import Timer
from epochal.state.key_codec import KeyCodec
from epochal.state.table import Column
from epochal.tasks.keys import CHUNK_ROWS, Chunk, KeyChunk
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of, run_starts

DOMAIN, TIME, NAME, DUE = "_domain", "_at", "_name", "_due"
TIMER_SCHEMA = pa.schema([(DOMAIN, pa.int8()), (TIME, pa.int64()), (NAME, pa.string()), (DUE, pa.int64())])
KEY, ROW = "_key", "_row"
DueTables = Iterable[pa.Table]
"""Due timers: the key columns, ``_kg`` int32 and ``TIMER_SCHEMA``; key groups ascend."""


@dataclass(frozen=True, eq=False)
class DueKeys:
    """Keys to call, each once in an epoch. Key i has the rows up to ``ends[i]``, and the timers up to ``bounds[i]``.

    ``rows`` is ``None`` if no key has rows. ``timers`` are sorted by key and, for a key, in the order of firing.
    """

    keys: KeyChunk
    rows: pa.Table | None
    ends: Sequence[int]
    timers: pa.Table
    bounds: Sequence[int]

    def timer_list(self) -> list[Timer]:
        columns = (column_of(self.timers, name).to_pylist() for name in (DOMAIN, TIME, NAME))
        return list(zip(*columns, strict=True))


def due_keys(
    chunks: Iterator[Chunk],
    keys_of: Callable[[Chunk], KeyChunk],
    key: tuple[Column, ...],
    due: Sequence[DueTables],
    target: int = CHUNK_ROWS,
) -> Iterator[DueKeys]:
    """All keys with rows, in their order, and all keys with due timers. ``target``: the approximate number of timers to
    process together."""
    waiting, before = _Waiting(key, due), -1
    for chunk in chunks:
        keys, ends, first, done = keys_of(chunk), chunk.ends, 0, False
        before = _checked_order(keys, before)
        while not done:
            # Up to the chunk's last key group, of which the next chunk may have more keys.
            group, done = waiting.read(int(keys.groups[-1]), target)
            last = len(keys) if done else int(np.searchsorted(keys.groups, group, "right"))
            if last > first:
                start = ends[first - 1] if first else 0
                here = KeyChunk(key, keys.table.slice(first, last - first), keys.groups[first:last])
                timers, bounds = waiting.taken(here)
                rows = chunk.rows.slice(start, ends[last - 1] - start)
                yield DueKeys(here, rows, [end - start for end in ends[first:last]], timers, bounds)
            yield from waiting.others(int(keys.groups[-1]), target)
            first = last
    done = False
    while not done:
        _, done = waiting.read(None, target)
        yield from waiting.others(None, target)


class _Waiting:
    """The timers that were read, and whose keys have not been called yet."""

    def __init__(self, key: tuple[Column, ...], due: Sequence[DueTables]) -> None:
        self._key = key
        self._schema = pa.schema([column.to_arrow() for column in key])
        self._codec = KeyCodec(self._schema)
        self._groups = merge(*map(_by_group, due), key=lambda of_group: of_group[0])
        self._next = next(self._groups, None)
        self._tables: list[pa.Table] = []

    def read(self, limit: int | None, target: int) -> tuple[int, bool]:
        """Read whole key groups up to group ``limit``, or until ``target`` timers have been read.

        Returns the last complete group, and whether all groups up to ``limit`` are complete.
        """
        rows, group = 0, -1
        while self._next is not None and (limit is None or self._next[0] <= limit):
            if rows >= target and self._next[0] != group:
                return group, False
            group, table = self._next
            self._tables.append(table)
            rows += table.num_rows
            self._next = next(self._groups, None)
        return (group if limit is None else limit), True

    def taken(self, keys: KeyChunk) -> tuple[pa.Table, list[int]]:
        """Remove and return the timers of these keys, and the end of those of each key."""
        if not self._tables:
            return TIMER_SCHEMA.empty_table(), [0] * len(keys)
        waiting = self._all()
        row = pc.index_in(self._encoded(waiting), value_set=self._codec.encode_array(keys.table))
        mine = row.is_valid()
        if pc.any(mine).as_py():
            self._tables = [waiting.filter(pc.invert(mine))]
        found = waiting.select(TIMER_SCHEMA.names).append_column(ROW, row).filter(mine)
        found = _in_order_of(ROW, found)
        bounds = np.searchsorted(found[ROW].to_numpy(), np.arange(len(keys)), "right")
        return found.select(TIMER_SCHEMA.names), bounds.tolist()

    def others(self, open_group: int | None, target: int) -> Iterator[DueKeys]:
        """The keys with timers but without rows, except those of ``open_group``, for which rows may follow."""
        if not self._tables:
            return
        timers = self._all()
        self._tables = []
        if open_group is not None:
            still_open = pc.equal(timers[KEY_GROUP], open_group)
            if pc.any(still_open).as_py():
                self._tables = [timers.filter(still_open)]
                timers = timers.filter(pc.invert(still_open))
        if not timers.num_rows:
            return
        timers = _in_order_of(KEY, timers.append_column(KEY, self._encoded(timers)))
        starts = run_starts(timers, (KEY,))
        for first, last in _cuts(starts, target):
            end = int(starts[last]) if last < len(starts) else timers.num_rows
            yield self._without_rows(timers, starts[first:last], end)

    def _without_rows(self, timers: pa.Table, starts: npt.NDArray[np.int64], end: int) -> DueKeys:
        first = timers.take(pa.array(starts))
        groups = column_of(first, KEY_GROUP).to_numpy()
        keys = KeyChunk(self._key, first.select(self._schema.names).cast(self._schema), groups)
        bounds = np.append(starts[1:], end) - starts[0]
        mine = timers.slice(int(starts[0]), end - int(starts[0])).select(TIMER_SCHEMA.names)
        return DueKeys(keys, None, [0] * len(keys), mine, bounds.tolist())

    def _all(self) -> pa.Table:
        return pa.concat_tables(self._tables).combine_chunks()

    def _encoded(self, timers: pa.Table) -> pa.Array:
        return self._codec.encode_array(timers.select(self._schema.names))


def _checked_order(keys: KeyChunk, before: int) -> int:
    """The last key group of ``keys``. Raises ``EpochAborted`` if key groups do not ascend, as timers are read by
    them."""
    if keys.groups[0] < before or (np.diff(keys.groups) < 0).any():
        raise EpochAborted("A task received rows that are not sorted by key group. This is a defect of Epochal.")
    return int(keys.groups[-1])


def _by_group(tables: DueTables) -> Iterator[tuple[int, pa.Table]]:
    for table in tables:
        starts = run_starts(table, (KEY_GROUP,)).tolist()
        for start, end in pairwise([*starts, table.num_rows]):
            yield table[KEY_GROUP][start].as_py(), table.slice(start, end - start)


def _in_order_of(name: str, timers: pa.Table) -> pa.Table:
    """The timers sorted by this column, and then in the order of firing."""
    order = pc.sort_indices(timers, sort_keys=[(each, "ascending") for each in (name, DOMAIN, TIME, NAME)])
    return timers.take(order).combine_chunks()


def _cuts(starts: npt.NDArray[np.int64], target: int) -> Iterator[tuple[int, int]]:
    """Ranges of keys, ``first`` up to ``last``, with about ``target`` rows together; a key is never split."""
    first = 0
    while first < len(starts):
        last = max(int(np.searchsorted(starts, starts[first] + target)), first + 1)
        yield first, last
        first = last
