"""``aggregate``: Spark aggregates the epoch's rows, the task merges these partials into state. No step per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.change_rows import KeyRows
from epochal.aggregates.plan import AggregationPlan
from epochal.contracts.conditions import BEGINNING
from epochal.operators.process.keyed_state import Times
from epochal.state.column_bytes import Mask
from epochal.state.expiry import microseconds
from epochal.state.table import TOUCHED, StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.slices import SliceKeys, gathered
from epochal.tasks.values import column_of


@dataclass(frozen=True)
class AggregateWork:
    """Output: for each key of the slice, the key columns, the merged partials and the columns that the plan computes.

    Spark computes the final values from these. Raises ``EpochAborted`` for a value that exceeds its type,
    ``AuthorError`` for errors of an author's merge.
    """

    plan: AggregationPlan
    rows: KeyRows | None = None
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        if not slice.num_rows:
            return
        keys = self.keys(subtask, slice)
        found, old = keys.stored()
        kept = self.plan.table.value_schema.names
        with AuthorCall(lambda: f"Operator {subtask.operator!r}, merging"):
            merged = self.plan.merge(found, old, slice.select(kept), keys.shown)
            if self.rows is None:
                rows_out = pa.Table.from_arrays(
                    [*keys.rows.columns, *merged.columns, *self.plan.compute(merged, keys.shown)], schema=subtask.output
                )
            else:
                was, now = self.visible(found, old, merged)
                rows_out = self.rows.of(keys.rows, old.select(kept), merged, was, now)
                if not (was | now).all():
                    rows_out = rows_out.filter(pa.array(was | now))
        values = [*merged.columns, *self.further_columns(subtask, slice, old, merged)]
        subtask.transaction.stage(keys.table.id, keys.changes("put", values))
        yield from rows_out.to_batches()

    def keys(self, subtask: Subtask, slice: pa.Table) -> SliceKeys:
        """The keys of the slice in the table of the aggregates."""
        return SliceKeys.of(subtask, self.plan.table, slice)

    def visible(self, found: Mask, old: pa.Table, merged: pa.Table) -> tuple[Mask, Mask]:
        """Masks of the keys that had an output row before this slice, and of those that have one now."""
        return found, np.ones_like(found)

    def further_columns(self, subtask: Subtask, slice: pa.Table, old: pa.Table, merged: pa.Table) -> Sequence[pa.Array]:
        """The value columns of that table in addition to the aggregates. ``old``: the stored values of each key;
        ``merged``: its new aggregates."""
        return ()


@dataclass(frozen=True)
class AggregateTtlWork(AggregateWork):
    """Stores the time of the last row of each group with its aggregates in ``table``.

    ``deleted``: the state column that is true for deleted keys; only their rows have a time.
    """

    table: StateTable = field(kw_only=True)
    deleted: str | None = field(default=None, kw_only=True)

    def keys(self, subtask: Subtask, slice: pa.Table) -> SliceKeys:
        return SliceKeys.living(subtask, self.table, slice)

    def visible(self, found: Mask, old: pa.Table, merged: pa.Table) -> tuple[Mask, Mask]:
        if self.deleted is None:
            return super().visible(found, old, merged)
        return found & ~_is_true(old.column(self.deleted)), ~_is_true(merged.column(self.deleted))

    def further_columns(self, subtask: Subtask, slice: pa.Table, old: pa.Table, merged: pa.Table) -> Sequence[pa.Array]:
        type = self.table.value_schema.field(self._time).type
        touched = pa.array(self._touched(subtask, slice, old)).cast(type)
        if self.deleted is None:
            return (touched,)
        return (pc.if_else(pa.array(_is_true(merged.column(self.deleted))), touched, pa.scalar(None, type)),)

    @property
    def _time(self) -> str:
        assert self.table.expires is not None
        return self.table.expires.column

    def _touched(self, subtask: Subtask, slice: pa.Table, old: pa.Table) -> Times:
        """The time of each group. In event time, that of its latest row, but at least the watermark ``late``, so that
        no group expires in the epoch that writes it."""
        if TOUCHED.name not in slice.column_names:
            return np.full(slice.num_rows, subtask.epoch_time)
        latest: Times = column_of(slice, TOUCHED.name).to_numpy()
        before: Times = pc.fill_null(microseconds(old.column(self._time)), BEGINNING).to_numpy()
        touched: Times = np.maximum(np.maximum(latest, before), subtask.watermarks.late)
        return touched


def _is_true(column: pa.Array | pa.ChunkedArray) -> Mask:
    mask: Mask = np.asarray(pc.fill_null(column, False))
    return mask
