"""Output of an aggregate for each key: its present values, or its previous and present values, from partials.

The task returns one row per key: its present partials and, for a stream of changes, its previous ones under other
names. Spark computes the values of both with the same expressions, and two rows for each key whose values changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.aggregates.decomposition import decompose, part_name
from epochal.aggregates.plan import Aggregation, AggregationPlan, OutputColumn
from epochal.contracts.stream_kind import CHANGE
from epochal.declarations.expressions import Expression, call, column, to_column

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

WAS, IS = "__was", "__is"
"""Columns: the key existed before, and exists now."""
_BEFORE = "__before_"
_ROWS = "__rows"

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class KeyRows:
    """One row for each key that existed or exists. ``before``: the columns' previous values; ``None``: only present
    values are returned, and for a removed key the aggregates' values over no rows."""

    plan: AggregationPlan
    before: tuple[OutputColumn, ...] | None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the task's output."""
        table = self.plan.table
        kept = [column.to_arrow() for column in (*table.value, *self.plan.computed)]
        was = [field.with_name(_BEFORE + field.name) for field in kept] if self.before is not None else []
        return pa.schema([*table.key_schema, *kept, *was, (WAS, pa.bool_()), (IS, pa.bool_())])

    def of(self, keys: pa.Table, old: pa.Table, new: pa.Table, was: Mask, now: Mask) -> pa.Table:
        """Rows of :attr:`schema`. ``old`` and ``new``: the value columns of each key, null for a missing key."""
        columns = [*keys.columns, *new.columns, *self.plan.compute(new)]
        if self.before is not None:
            # Only over existing keys: an aggregate need not support missing ones.
            place = pa.array(np.cumsum(was) - 1, mask=~was)
            computed = self.plan.compute(old.filter(pa.array(was)))
            columns += [*old.columns, *(each.take(place) for each in computed)]
        return pa.Table.from_arrays([*columns, pa.array(was), pa.array(now)], schema=self.schema)

    def finishing(self) -> tuple[list[SparkColumn], ...]:
        """Consecutive selects from the task's rows to the operator's output."""
        keys = [to_column(column(name)) for name in self.plan.keys]
        marks = [to_column(column(WAS)), to_column(column(IS))]
        parts = self.plan.parts
        finals = [*self._finals("", 0), *([] if self.before is None else self._finals(_BEFORE, len(parts)))]
        if self.before is None:
            now = [to_column(self._value_now(each).alias(each.name)) for each in self.plan.columns]
            return [*keys, *marks, *finals], [*keys, *now]
        rows = to_column(self._rows(self.before).alias(_ROWS))
        return [*keys, *marks, *finals], [*keys, rows], [*keys, to_column(call("inline_outer", column(_ROWS)))]

    def without_unchanged(self, rows: DataFrame) -> DataFrame:
        """Result of :meth:`finishing` without unchanged keys, which come as nulls.

        ``inline`` would remove them, but Spark then infers a filter over all inputs of the array, which takes minutes.
        """
        return rows if self.before is None else rows.where(column_is_there(CHANGE))

    def _finals(self, prefix: str, first: int) -> Iterator[SparkColumn]:
        for position, part in enumerate(self.plan.parts, first):
            final = part.aggregate.final([column(prefix + name) for name in part.final_columns])
            yield to_column(final.alias(part_name(position)))

    def _value_now(self, value: OutputColumn) -> Expression:
        """Present value of a column; null without rows, since an expression may divide by the number of rows."""
        if str(value.remainder).strip("`") in {part_name(number) for number in range(len(self.plan.parts))}:
            return typed(value)
        return call("when", column(IS), typed(value))

    def _rows(self, before: Sequence[OutputColumn]) -> Expression:
        """Array of structs: the previous row, the present row, or both."""

        def row(values: Sequence[OutputColumn], change: int) -> Expression:
            named = [typed(each).alias(each.name) for each in values]
            return call("struct", *named, call("lit", change).alias(CHANGE))

        was, now = row(before, -1), row(self.plan.columns, 1)
        same = call("lit", True)
        for old, new in zip(before, self.plan.columns, strict=True):
            same = same & comparable(old).eqNullSafe(comparable(new))
        return (
            call("when", ~column(IS), call("array", was))
            .when(~column(WAS), call("array", now))
            .when(~same, call("array", was, now))
        )


def key_rows(plan: AggregationPlan, aggregations: Sequence[Aggregation], changes: bool) -> KeyRows:
    """Key rows of a plan. ``changes``: including previous rows."""
    if not changes:
        return KeyRows(plan, None)
    before, first = [], len(plan.parts)
    for aggregation, value in zip(aggregations, plan.columns, strict=True):
        taken_apart = decompose(aggregation.name, aggregation.expression, first=first)
        before.append(OutputColumn(value.name, value.type, taken_apart.remainder))
        first += len(taken_apart.aggregates)
    return KeyRows(plan, tuple(before))


def column_is_there(name: str) -> SparkColumn:
    return to_column(column(name).isNotNull())


def typed(value: OutputColumn) -> Expression:
    return value.remainder if value.type is None else value.remainder.cast(value.type)


def comparable(value: OutputColumn) -> Expression:
    """A comparable form of a column: JSON for types with maps or variants, which Spark cannot compare."""
    if value.type is not None and not any(kind in value.type for kind in ("map<", "variant")):
        return typed(value)
    return call("to_json", call("struct", typed(value).alias("value")))
