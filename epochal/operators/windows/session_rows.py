"""The rows of open sessions in state, by key and time, and the closing sessions with their rows.

The sessions are those of an aggregate over the rows, their count. A row is written once, independent of its session.
When a session closes, its rows are a range of the key's rows, and are deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.windows import WINDOW_END, WINDOW_START
from epochal.operators.windows.grid_rows import ClosedWindows, NewRows, in_windows, pieces
from epochal.operators.windows.session_work import SessionAggregateWork
from epochal.state.access import TableAccess
from epochal.state.key_codec import KeyCodec
from epochal.state.table import Column, StateTable
from epochal.state.type_names import KeyText
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import delta_rows, key_numbers
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of
from epochal.tasks.windows import Integers, expanded, times_of

TIME: Final = "_time"
ROWS: Final = "rows"
"""The number of rows of a session, its only value column."""


@dataclass(frozen=True)
class RowCounts:
    """The number of rows of each session, the only value column of ``table``."""

    table: StateTable
    computed: ClassVar[tuple[Column, ...]] = ()

    def merge(self, found: npt.NDArray[np.bool_], old: pa.Table, new: pa.Table, key: KeyText | None = None) -> pa.Table:
        before = pc.fill_null(column_of(old, ROWS), 0)
        return pa.table([pc.add(before, column_of(new, ROWS))], schema=self.table.value_schema)

    def compute(self, merged: pa.Table, key: KeyText | None = None) -> list[Any]:
        return []


@dataclass(frozen=True)
class SessionWindowRows:
    """The storage of rows of sessions.

    ``table``: rows by key, ``_time`` and ``_digest``. ``sessions``: the sessions, over :class:`RowCounts`.
    """

    table: StateTable
    sessions: SessionAggregateWork
    batch_rows: int

    def closed(self, subtask: Subtask, slice: pa.Table, order_by: tuple[str, ...]) -> Iterator[ClosedWindows]:
        """``slice`` has the event time of rows in column ``_time``."""
        epoch = _Epoch(self, subtask, slice)
        yield from epoch.closed(order_by)
        epoch.stage()


class _Epoch:
    """The rows of one subtask's sessions in one epoch."""

    def __init__(self, kept: SessionWindowRows, subtask: Subtask, slice: pa.Table) -> None:
        self._kept = kept
        self._subtask = subtask
        table = kept.table
        self._view = subtask.transaction.view(table.id)
        self._access = TableAccess(table, self._view, subtask.max_parallelism)
        self._by_time = KeyCodec(pa.schema([*table.owner_schema, table.key_schema.field(TIME)]))
        self._codec = KeyCodec(table.key_schema)
        new = NewRows.of(table, self._access, slice)
        # Sorted as in state, so that the new rows of a session are a range, too.
        order = pc.array_sort_indices(self._by_time.encode_array(new.rows))
        self._new = NewRows(new.rows.take(order).combine_chunks(), new.came[order.to_numpy()], new.stored)
        self._places = self._by_time.encode(self._new.rows)
        self._stays = np.ones(len(self._places), np.bool_)

    def closed(self, order_by: tuple[str, ...]) -> Iterator[ClosedWindows]:
        """The sessions that close in this epoch. Stages the deletion of their rows."""
        sessions = self._kept.sessions
        bounds = (Column(name=name, type="timestamp").to_arrow() for name in (WINDOW_START, WINDOW_END))
        output = pa.schema([*sessions.sessions.owner_schema, *bounds, *sessions.plan.table.value_schema])
        for batch in sessions.run(replace(self._subtask, output=output), iter([self._counts()])):
            found = pa.Table.from_batches([batch])
            for first, last in pieces(column_of(found, ROWS).to_numpy(), self._kept.batch_rows):
                yield from self._with_rows(found.slice(first, last - first), order_by)

    def stage(self) -> None:
        """Stage the rows of sessions that are open at the end of the epoch."""
        rows = self._new.rows.filter(pa.array(self._stays))
        if rows.num_rows:
            groups, *columns = rows.columns
            changes = delta_rows(self._kept.table, groups.combine_chunks(), "put", columns)
            self._subtask.transaction.stage(self._kept.table.id, changes)

    def _counts(self) -> pa.RecordBatch:
        """The number of new rows of each key and time."""
        rows, keys = self._new.rows, self._kept.table.owner_schema.names
        numbers = key_numbers(rows.select([*keys, TIME]))
        counts = np.bincount(numbers, self._new.came).astype(np.int64)
        _, firsts = np.unique(numbers, return_index=True)
        each = [column_of(rows, name).take(pa.array(firsts)) for name in (KEY_GROUP, *keys, TIME)]
        return pa.RecordBatch.from_arrays([*each, pa.array(counts)], names=[KEY_GROUP, *keys, WINDOW_START, ROWS])

    def _with_rows(self, sessions: pa.Table, order_by: tuple[str, ...]) -> Iterator[ClosedWindows]:
        lows, highs = (self._bounds(sessions, name) for name in (WINDOW_START, WINDOW_END))
        groups = self._kept.table.key_groups(sessions, self._subtask.max_parallelism)
        found = self._view.ranges(groups, lows, highs)
        keys = self._codec.decode(found.keys)
        stored = pa.table([groups[found.owner], *keys.columns, *found.values.columns], schema=self._new.rows.schema)
        self._delete(groups[found.owner], keys)
        again = pc.is_in(found.keys, value_set=self._new.stored)
        of_stored = found.owner[~again.to_numpy(zero_copy_only=False)]
        of_new, new = self._new_rows(lows.to_pylist(), highs.to_pylist())
        rows = pa.concat_tables([stored.filter(pc.invert(again)), self._new.rows.take(pa.array(new))])
        starts, ends = (times_of(column_of(sessions, name)) for name in (WINDOW_START, WINDOW_END))
        windows = np.concatenate([of_stored, of_new])
        yield from in_windows(
            rows.combine_chunks(),
            np.arange(len(windows)),
            windows,
            _Bounds(starts, ends),
            order_by,
            self._kept.batch_rows,
        )

    def _bounds(self, sessions: pa.Table, name: str) -> pa.BinaryArray:
        keys = sessions.select(self._kept.table.owner_schema.names)
        return self._by_time.encode_array(keys.append_column(TIME, column_of(sessions, name)))

    def _new_rows(self, lows: list[bytes], highs: list[bytes]) -> tuple[Integers, Integers]:
        """The new rows in these ranges, as pairs of range number and row position."""
        firsts = np.array([bisect_left(self._places, low) for low in lows], np.int64)
        lasts = np.array([bisect_left(self._places, high) for high in highs], np.int64)
        ranges, step = expanded(lasts - firsts)
        rows = firsts[ranges] + step
        self._stays[rows] = False
        return ranges, rows

    def _delete(self, groups: npt.NDArray[np.int32], keys: pa.Table) -> None:
        if len(groups):
            changes = delta_rows(self._kept.table, groups, "delete", keys.columns)
            self._subtask.transaction.stage(self._kept.table.id, changes)


@dataclass(frozen=True)
class _Bounds:
    starts: Integers
    ends: Integers
