"""The tagged output of an operator with side outputs: its own rows and those of each side, in columns apart."""

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
    """Rows of a side output, with the side's columns, among the batches that an operator's work gives."""

    side: str
    rows: pa.RecordBatch


OutputBatch: TypeAlias = "pa.RecordBatch | SideRows"


@dataclass(frozen=True)
class TaskOutput:
    """The columns that a task gives, control columns apart: without sides those of ``main``, as they are."""

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
        """By the name of each column of a side how it is called in the task's output. There are sides."""
        schema = self.main if side is None else self.sides[side]
        number = self.number(side)
        return {name: carried_name(number, name) for name in schema.names}

    def tagged(self, batch: OutputBatch) -> pa.RecordBatch:
        """What the work gave, with the columns :attr:`schema`."""
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
    """An output column that is a column of the task's rows as it is; ``or_zero``: 0 where that is null."""

    column: str
    or_zero: bool = False

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column(self.column)
        return pc.fill_null(values, 0) if self.or_zero else values
