"""T2 of ``aggregate``: merge the slice's partials, which Spark has computed, into the state table. No step per row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from epochal.engine.tasks.calls import KEY_GROUP
from epochal.engine.tasks.operator import Subtask
from epochal.engine.tasks.reporting import author_error
from epochal.engine.tasks.values import column_of
from epochal.errors import EpochalError
from epochal.pipeline.aggregation import AggregationPlan
from epochal.state.access import TableAccess


@dataclass(frozen=True)
class AggregateWork:
    """Output: for each key of the slice, the key columns, the merged partials and what the plan computes from them.

    Spark makes final values of these.

    Raises ``EpochAborted`` for a value that leaves its type, ``AuthorError`` for what an author's own merge raises.
    """

    plan: AggregationPlan
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = self.plan.table
        slice = pa.Table.from_batches(list(rows)).combine_chunks()
        if not slice.num_rows:
            return
        keys = slice.select(table.key_schema.names).cast(table.key_schema)
        groups = column_of(slice, KEY_GROUP)
        access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
        found, old = access.get(keys, groups.to_numpy())
        try:
            merged = self.plan.merge(found, old, slice.select(table.value_schema.names))
            computed = self.plan.compute(merged)
        except EpochalError:
            raise
        except Exception as error:
            raise author_error(f"Operator {subtask.operator!r}, merging", error) from error
        puts = pa.repeat(pa.scalar("put"), slice.num_rows)
        arrays = [groups, puts, *keys.columns, *merged.columns]
        subtask.transaction.stage(table.id, pa.Table.from_arrays(arrays, schema=table.delta_schema))
        columns = [*keys.columns, *merged.columns, *computed]
        yield from pa.Table.from_arrays(columns, schema=subtask.output).to_batches()
