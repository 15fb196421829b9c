"""T2 of the join of two streams whose rows are near in time: new rows with waiting rows, and with each other.

The table of a side is a multiset of its rows by (key, time, digest of the row): the count of each row, and, if the join
needs it, whether the row has had a partner. Its content depends on the rows alone, not on their order or epochs. Rows
are sorted by key first, as partners are searched by key. Rows that are emitted when no partner can follow are also in a
second table, by time.

Every row that is not late matches all partners that are not late, in any epoch: a row is deleted from the tables only
when all possible times of a partner are late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from epochal.operators.joins.interval_matching import Integers, Runs
from epochal.operators.joins.work import NewRows, Side, StateBatch, StoredRows
from epochal.state.column_bytes import column
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import gathered

OUTPUT_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class JoinKind:
    """The output of a join: ``pairs`` of rows; rows without a partner; for ``semi``, left rows with a partner."""

    pairs: bool
    left_alone: bool = False
    right_alone: bool = False
    semi: bool = False

    @property
    def left_rows_stay(self) -> bool:
        """True if a left row with a partner may have further partners."""
        return self.pairs


KINDS: Final = {
    "inner": JoinKind(pairs=True),
    "left": JoinKind(pairs=True, left_alone=True),
    "right": JoinKind(pairs=True, right_alone=True),
    "full": JoinKind(pairs=True, left_alone=True, right_alone=True),
    "left_semi": JoinKind(pairs=False, semi=True),
    "left_anti": JoinKind(pairs=False, left_alone=True),
}


@dataclass(frozen=True)
class IntervalJoinWork:
    """The work of the join of the inputs ``left`` and ``right``. Rows with null in the key have no partner, as in
    SQL."""

    kind: JoinKind
    left: Side
    right: Side
    output_rows: int = OUTPUT_ROWS
    """Maximum rows of an output batch, and of a read of state."""
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        yield from _Epoch(self, subtask, slice).output()


class _Epoch:
    """One run of the work."""

    def __init__(self, work: IntervalJoinWork, subtask: Subtask, slice: pa.Table) -> None:
        self._work = work
        self._subtask = subtask
        self._fire = subtask.watermarks.fire
        self._left, self._right = NewRows.of(slice, (work.left, work.right))
        self._joined = _JoinedRows(subtask.output, work.left, work.right)
        self._stored = {side.number: StoredRows(side, subtask, work.output_rows) for side in (work.left, work.right)}

    def output(self) -> Iterator[pa.RecordBatch]:
        left, right = self._left, self._right
        for new in (left, right):
            self._stored[new.side.number].prepare(new, self._fire)
        yield from self._new_with_new()
        yield from self._new_with_stored(left, self._stored[right.side.number])
        yield from self._new_with_stored(right, self._stored[left.side.number])
        for new, alone in ((left, self._work.kind.left_alone), (right, self._work.kind.right_alone)):
            stored = self._stored[new.side.number]
            if alone:
                yield from self._alone(new, stored)
            if new is left and self._work.kind.semi:
                yield from self._rows(new.side, new.rows, np.flatnonzero(new.matched))
            stored.put(new, self._fire, only_unmatched=new is left and not self._work.kind.left_rows_stay)

    def _new_with_new(self) -> Iterator[pa.RecordBatch]:
        left, right = self._left, self._right
        probes = right.by_time.order
        runs = left.by_time.near(right.codes[probes], right.times[probes], right.side.low, right.side.high)
        left.matched[left.by_time.order[runs.covered(len(left))]] = True
        right.matched[probes[runs.counts > 0]] = True
        if not self._work.kind.pairs:
            return
        for probe, position in runs.pairs(self._work.output_rows):
            of_left, of_right = left.by_time.order[position], probes[probe]
            yield self._joined.pairs(left.rows, of_left, left.rows, of_left, right.rows, of_right)

    def _new_with_stored(self, new: NewRows, stored: StoredRows) -> Iterator[pa.RecordBatch]:
        """Matches new rows of one side with the waiting rows of the other."""
        side, kind = stored.side, self._work.kind
        for batch in stored.near(new):
            runs = new.by_time.near(batch.codes, batch.times, side.low, side.high)
            new.matched[new.by_time.order[runs.covered(len(new))]] = True
            found = runs.counts > 0
            if kind.pairs:
                yield from self._pairs(new, side, batch, runs)
            if side.number == self._work.left.number and not kind.left_rows_stay:
                rows = batch.only(found)
                if kind.semi:
                    yield from self._stored_rows(stored, rows)
                stored.delete(rows)
            elif side.waiting is not None:
                stored.mark_matched(batch, found)

    def _pairs(self, new: NewRows, side: Side, batch: StateBatch, runs: Runs) -> Iterator[pa.RecordBatch]:
        several = batch.counts.max(initial=1) > 1
        for run, position in runs.pairs(self._work.output_rows):
            once = run, new.by_time.order[position]
            for of_batch, of_new in self._repeated(*once, batch.counts) if several else (once,):
                if side.number == self._work.left.number:
                    yield self._joined.pairs(new.rows, of_new, batch.rows, of_batch, new.rows, of_new)
                else:
                    yield self._joined.pairs(new.rows, of_new, new.rows, of_new, batch.rows, of_batch)

    def _repeated(self, run: Integers, of_new: Integers, counts: Integers) -> Iterator[tuple[Integers, Integers]]:
        """Each pair, repeated by the count of the waiting row."""
        zeros = np.zeros(len(run), np.int64)
        for pair, _ in Runs(zeros, counts[run]).pairs(self._work.output_rows):
            yield run[pair], of_new[pair]

    def _alone(self, new: NewRows, stored: StoredRows) -> Iterator[pa.RecordBatch]:
        """Rows without a partner when none can follow, both waiting and new ones."""
        yield from self._rows(new.side, new.keyless, np.arange(new.keyless.num_rows))
        gone = ~new.matched & ~new.side.stays(new.times, self._fire)
        yield from self._rows(new.side, new.rows, np.flatnonzero(gone))
        for batch in stored.due(self._fire):
            yield from self._stored_rows(stored, batch)

    def _stored_rows(self, stored: StoredRows, batch: StateBatch) -> Iterator[pa.RecordBatch]:
        rows = stored.with_key(batch)
        zeros = np.zeros(len(batch.counts), np.int64)
        for row, _ in Runs(zeros, batch.counts).pairs(self._work.output_rows):
            yield self._joined.alone(stored.side, rows, row)

    def _rows(self, side: Side, rows: pa.Table, positions: Integers) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(positions), self._work.output_rows):
            yield self._joined.alone(side, rows, positions[start : start + self._work.output_rows])


@dataclass(frozen=True)
class _JoinedRows:
    """Output rows: the key, the columns of the left row, if any, and those of the right row, if any."""

    schema: pa.Schema
    left: Side
    right: Side

    def pairs(
        self, keyed: pa.Table, of_key: Integers, left: pa.Table, of_left: Integers, right: pa.Table, of_right: Integers
    ) -> pa.RecordBatch:
        key = keyed.select(list(self.left.key_names)).take(pa.array(of_key))
        columns = dict(zip(key.column_names, key.columns, strict=True))
        for side, rows, positions in ((self.left, left, of_left), (self.right, right, of_right)):
            taken = rows.select(list(side.shown)).take(pa.array(positions))
            columns |= dict(zip(taken.column_names, taken.columns, strict=True))
        return self._batch(columns, len(of_key))

    def alone(self, side: Side, rows: pa.Table, positions: Integers) -> pa.RecordBatch:
        taken = rows.select([*side.key_names, *side.shown]).take(pa.array(positions))
        return self._batch(dict(zip(taken.column_names, taken.columns, strict=True)), len(positions))

    def _batch(self, columns: dict[str, pa.ChunkedArray], count: int) -> pa.RecordBatch:
        there = pa.table(columns)
        arrays = [
            column(there, field) if field.name in columns else pa.nulls(count, field.type) for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
