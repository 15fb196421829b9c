"""Runs a join of two streams without Spark: simulated shuffle and marks, watermarks of the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from epochal.operators.contract import Operator as Declared
from epochal.operators.contract import OperatorPlan
from epochal.state.keygroups import key_groups
from epochal.state.watermarks import BEGINNING
from epochal.tasks.subtask_rows import carried_name
from tests.unit.tasks.conftest import MakeOperator, Operator

Row = Mapping[str, Any]
TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Columns:
    """The columns of an input, in the form that a plan reads."""

    schema: StructType

    @property
    def columns(self) -> list[str]:
        return self.schema.names


@dataclass
class Join(Operator):
    """An operator with two inputs by key; ``schemas``: schemas of their rows."""

    schemas: tuple[pa.Schema, pa.Schema] = (pa.schema([]), pa.schema([]))

    @property
    def waits_for(self) -> list[int]:
        """The event times that the subtasks wait for after the last epoch."""
        return [due.event for due in self.dues if due.event is not None]

    def take(self, left: Sequence[Row], right: Sequence[Row], fire: int | None = None) -> list[dict[str, Any]]:
        """Run one epoch with the watermark ``fire``, by default that of the previous epoch."""
        before = BEGINNING if self.clock is None else self.clock.event
        assert fire is None or fire >= before
        self.at(before if fire is None else fire, epoch_time=0)
        return self.run((left, right))  # type: ignore[arg-type]

    def table(self, rows: Any) -> pa.Table:
        key = pa.schema([column.to_arrow() for column in self.key])
        parts = []
        for number, (schema, of_side) in enumerate(zip(self.schemas, rows, strict=True)):
            data = pa.Table.from_pylist([dict(row) for row in of_side], schema)
            groups = key_groups(data.select(key.names).cast(key), key, self.max_parallelism)
            columns = {
                "_mark": pa.nulls(len(of_side), pa.int32()),
                "_subtask": pa.array(groups % self.parallelism, pa.int32()),
                "_kg": pa.array(groups, pa.int32()),
                "_input": pa.repeat(pa.scalar(number, pa.int8()), len(of_side)),
            }
            for name in schema.names:
                columns[name if name in key.names else carried_name(number, name)] = data[name]
            parts.append(pa.table(columns))
        numbers = pa.array(range(self.parallelism), pa.int32())
        return pa.concat_tables([*parts, pa.table({"_mark": numbers, "_subtask": numbers})], promote_options="default")


def planned(declared: Declared, left: pa.Schema, right: pa.Schema) -> OperatorPlan:
    """The plan of an operator over two inputs with these columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return declared.plan([Columns(from_arrow_schema(schema)) for schema in (left, right)])  # type: ignore[misc]


def make_join(
    make_operator: MakeOperator, declared: Declared, left: pa.Schema, right: pa.Schema, kind: str = "heap", **more: Any
) -> Join:
    """``left``, ``right``: the columns of the inputs."""
    schemas, plan = (left, right), planned(declared, left, right)
    operator = make_operator(
        plan.work, plan.key, pa.schema([]), plan.output, kind=kind, tables=plan.tables, name=declared.name
    )
    fields = {name: getattr(operator, name) for name in operator.__dataclass_fields__}
    return Join(**{**fields, "schemas": schemas, **more})
