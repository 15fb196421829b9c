"""The columns that an operator's task yields: its output, its side outputs, and columns that need no computation.

The rows of an operator with side outputs are tagged; the output and each side have separate columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from epochal.tasks.subtask_rows import carried_name

SIDE = "_side"
"""0 in rows of the output itself, the number of the side (from 1, as declared) in rows of a side."""


@dataclass(frozen=True, eq=False)
class SideRows:
    """Rows of a side output, with the side's columns, among the batches that an operator's work yields."""

    side: str
    rows: pa.RecordBatch


OutputBatch: TypeAlias = "pa.RecordBatch | SideRows"


@dataclass(frozen=True)
class TaskOutput:
    """The columns that a task yields, without control columns. Without side outputs they are those of ``main``."""

    main: pa.Schema
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)

    @cached_property
    def schema(self) -> pa.Schema:
        if not self.sides:
            return self.main
        schemas = enumerate((self.main, *self.sides.values()))
        carried = (column.with_name(carried_name(number, column.name)) for number, each in schemas for column in each)
        return pa.schema([pa.field(SIDE, pa.int8()), *carried])

    def number(self, side: str | None) -> int:
        """The tag of a side's rows; 0 for the main output, ``None``."""
        return 0 if side is None else list(self.sides).index(side) + 1

    def columns(self, side: str | None) -> dict[str, str]:
        """By the name of each column of a side, its name in the task's output. Requires side outputs."""
        schema = self.main if side is None else self.sides[side]
        number = self.number(side)
        return {name: carried_name(number, name) for name in schema.names}

    def tagged(self, batch: OutputBatch) -> pa.RecordBatch:
        """A batch of the work, with the columns :attr:`schema`."""
        if not self.sides:
            return batch
        rows = batch.rows if isinstance(batch, SideRows) else batch
        number = self.number(batch.side if isinstance(batch, SideRows) else None)
        arrays = [pa.nulls(rows.num_rows, column.type) for column in self.schema]
        arrays[0] = pa.repeat(pa.scalar(number, pa.int8()), rows.num_rows)
        schemas = (self.main, *self.sides.values())
        first = 1 + sum(len(schema) for schema in schemas[:number])
        arrays[first : first + len(schemas[number])] = rows.columns
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@dataclass(frozen=True)
class PassthroughColumn:
    """An output column that a column of the task's rows has.

    ``fields``: the path to a field of nested structs. ``or_zero``: with 0 in place of null. ``earlier``: microseconds
    that are subtracted from timestamps.
    """

    column: str
    fields: tuple[str, ...] = ()
    or_zero: bool = False
    earlier: int = 0

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        if self.fields:
            values = pc.struct_field(values, list(self.fields))
        if self.earlier:
            values = pc.subtract(values, pa.scalar(self.earlier, pa.duration("us")))
        return pc.fill_null(values, 0) if self.or_zero else values
