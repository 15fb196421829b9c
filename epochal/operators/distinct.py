"""``distinct``: each key once, in the epoch in which it first comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.schemas import key_columns
from epochal.errors import PipelineError
from epochal.operators.contract import Distribution, Input, Operator, OperatorPlan
from epochal.operators.distribution import Subtasks
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import quoted
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import SliceKeys, gathered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class DistinctOperator(Operator):
    """State table: the operator's name; it says ``seen`` of every key that has come."""

    kind: ClassVar[str] = "distinct"
    name: str
    keys: tuple[str, ...]
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        key = key_columns(self.name, self.keys, frames[0].schema)
        seen = Column(name="seen", type="boolean")
        if seen.name in {column.name.casefold() for column in key}:
            raise PipelineError(f"Operator {self.name!r}: its state has a column {seen.name!r}. Rename the key column.")
        table = StateTable(
            id=self.name, operator=self.name, kind=StateKind.VALUE, key=key, value=(seen,), queryable=self.queryable
        )
        output = pa.schema([column.to_arrow() for column in key])
        return DistinctPlan(self.name, self.inputs, key, (table,), DistinctWork(table), output)

    def computes_of(self, input: int) -> frozenset[str] | None:
        return frozenset()

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys)}

    @property
    def grows(self) -> str | None:
        return "keeps every key that came. Where keys have no end, drop_duplicates(within='1 day') forgets them."


@dataclass(frozen=True)
class DistinctPlan(OperatorPlan):
    """Spark leaves one row of each key, so that a task meets none twice."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return super().distributed([frames[0].select(*map(quoted, self.inputs[0].keys)).distinct()], subtasks)


@dataclass(frozen=True)
class DistinctWork:
    """Output: the keys that are not in the table; it puts them there."""

    table: StateTable
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = SliceKeys.of(subtask, self.table, gathered(rows))
        found, _ = keys.stored()
        new = keys.filter(pa.array(~found))
        seen = pa.repeat(pa.scalar(True), new.rows.num_rows)
        subtask.transaction.stage(self.table.id, new.changes("put", [seen]))
        yield from new.rows.cast(subtask.output).to_batches()
