"""Columns of an operator's output that its task gives, so that Spark has nothing to compute."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class GivenColumn:
    """An output column that is a column of the task's rows as it is; ``or_zero``: 0 where that is null."""

    column: str
    or_zero: bool = False

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        return pc.fill_null(values, 0) if self.or_zero else values
