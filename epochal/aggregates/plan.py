"""Plan of an aggregate operator: partial columns for Spark, merges for the state table, and final values.

``plan_aggregation`` analyses the operator's input once. The plan is small, frozen and serialisable: the driver takes
Spark columns from it, executors use its merges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.aggregates.aggregate_types import AggregateTypes
from epochal.aggregates.built_in import OWN_ARGUMENTS
from epochal.aggregates.decomposition import Decomposed, decompose, part_name
from epochal.aggregates.mergeable import MergeableAggregate, Partial
from epochal.aggregates.retraction import ROWS, SignedCount, taking_back
from epochal.declarations import expressions
from epochal.declarations.expressions import Call, Expression, rebuilt, to_column
from epochal.declarations.spark_errors import at
from epochal.errors import ComputationFailed, PipelineError
from epochal.state.table import Column, Quotient, Shown, StateKind, StateTable
from epochal.state.type_names import BeyondType, KeyText, nested_type, type_name, wider_argument
from epochal.state.types import check_column

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


Again = Callable[[pa.Array], Any]
"""Computes some rows again. Raises ``OverflowError`` if a value overflows its type."""


@dataclass(frozen=True, eq=False)
class Aggregation:
    """One output column of ``aggregate``: its name, and the author's aggregate expression or own aggregate.

    :func:`plan_aggregation` turns it into partial columns, a merge per partial column, and a final expression.
    """

    name: str
    expression: Expression | MergeableAggregate


@dataclass(frozen=True, eq=False)
class Part:
    """One mergeable aggregate within an output column, and the state columns that hold its partials, in their order."""

    column: str
    aggregate: MergeableAggregate
    partials: tuple[Partial, ...]
    state_columns: tuple[str, ...]
    computed: tuple[Column, ...] = ()
    """Columns that the task adds for the final value, with names of the plan."""
    call: Expression | None = None
    """The author's call of Spark's function; ``None`` for an author's own aggregate."""

    @property
    def names(self) -> list[str]:
        """Names of the partials."""
        return [kept.name for kept in self.partials]

    @property
    def final_columns(self) -> list[str]:
        return [*self.state_columns, *(column.name for column in self.computed)]


@dataclass(frozen=True, eq=False)
class OutputColumn:
    """An output column: computed from the plan's parts by ``remainder``, with the type of a Spark batch query."""

    name: str
    type: str | None
    remainder: Expression


@dataclass(frozen=True, eq=False)
class AggregationPlan:
    """Plan of one aggregate operator.

    E2: Spark computes ``input.groupBy(keys).agg(*partial_columns())``; the task looks the keys up, merges, stages the
    result and returns keys and merged partials; ``finish`` computes the output.
    """

    operator: str
    table: StateTable
    parts: tuple[Part, ...]
    columns: tuple[OutputColumn, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.key)

    def by(self, key: tuple[Column, ...]) -> AggregationPlan:
        """The same aggregates grouped by other columns."""
        return replace(self, table=self.table.model_copy(update={"key": key}))

    def partial_columns(self) -> list[SparkColumn]:
        """Aggregate columns over the input, one per value column of the state table, named and typed like it."""
        return [
            to_column(kept.computed).alias(name)
            for part in self.parts
            for kept, name in zip(part.partials, part.state_columns, strict=True)
        ]

    def merge(self, found: npt.NDArray[np.bool_], old: pa.Table, new: pa.Table, key: KeyText | None = None) -> pa.Table:
        """The table's value columns after this slice: row i of ``old`` (where ``found[i]``) and of ``new`` are one key.

        ``old`` and ``new`` have the value columns, in any order; the result has ``StateTable.value_schema``. Columns
        of ``new`` that replace partials have other types. Raises ``ComputationFailed`` naming
        operator, column and, with ``key``, key when a value overflows its type.
        """
        schema = self.table.value_schema
        old, new = old.select(schema.names).cast(schema), new.select(schema.names)
        new = new.cast(pa.schema([new.schema.field(f.name) if f.name in self._sent else f for f in schema]))
        if not found.any() and not any(part.aggregate.always_merged for part in self.parts):
            return new
        merged = [column for part in self.parts for column in self._merge_part(part, old, new, key).columns]
        return pa.table(merged, names=schema.names).cast(schema)

    @property
    def computed(self) -> tuple[Column, ...]:
        """Columns of the task's output beside keys and merged partials; not stored in state."""
        return tuple(column for part in self.parts for column in part.computed)

    def compute(self, merged: pa.Table, key: KeyText | None = None) -> list[Any]:
        """The :attr:`computed` columns from the merged ones. Raises ``ComputationFailed`` as :meth:`merge`."""
        columns: list[Any] = []
        for part in self.parts:
            if part.computed:
                rows = _of_part(part, merged)
                with self._within_types(part, key, partial(_computed, part, rows), rows.num_rows):
                    added = part.aggregate.compute(rows)
                columns += [
                    added[own.name].cast(column.to_arrow().type)
                    for own, column in zip(part.aggregate.computed(), part.computed, strict=True)
                ]
        return columns

    @cached_property
    def _sent(self) -> frozenset[str]:
        """Columns for which Spark computes other values; their aggregates are always merged."""
        columns = (zip(part.partials, part.state_columns, strict=True) for part in self.parts)
        return frozenset(name for of_part in columns for kept, name in of_part if kept.sent is not None)

    def _merge_part(self, part: Part, old: pa.Table, new: pa.Table, key: KeyText | None) -> pa.Table:
        old, new = _of_part(part, old), _of_part(part, new)
        with self._within_types(part, key, partial(_merged, part, old, new), new.num_rows):
            return part.aggregate.merge(old, new).select(part.names)

    @contextmanager
    def _within_types(self, part: Part, key: KeyText | None, again: Again, rows: int) -> Iterator[None]:
        try:
            yield
        except OverflowError as error:
            advice = wider_argument(error.type) if isinstance(error, BeyondType) else part.aggregate.advice
            where = f"Operator {self.operator!r}, column {part.column!r}"
            row = None if key is None else _failing(again, rows)
            if key is not None and row is not None:
                where += f", key {key(row)}"
            raise ComputationFailed(f"{where}: {error}. {advice}") from error

    def unmerged(self, frame: DataFrame) -> DataFrame:
        """Columns of the task's output over the operator's input, without merging; used for their types."""
        keys = [to_column(expressions.column(name)) for name in self.keys]
        computed = [to_column(expressions.null(column.type).alias(column.name)) for column in self.computed]
        return frame.groupBy(*keys).agg(*self.partial_columns()).select("*", *computed)

    def finish(self, frame: DataFrame) -> DataFrame:
        """From key and merged partials to the operator's output: key columns, then the author's columns in order."""
        for columns in self.finishing():
            frame = frame.select(*columns)
        return frame

    def finishing(self) -> tuple[list[SparkColumn], list[SparkColumn]]:
        """The two selects of :meth:`finish`. The same columns may be used in any number of epochs."""
        keys = [to_column(expressions.column(name)) for name in self.keys]
        finals = [
            part.aggregate.final([*map(expressions.column, part.final_columns)]).alias(part_name(position))
            for position, part in enumerate(self.parts)
        ]
        return [*keys, *map(to_column, finals)], [*keys, *map(self._output, self.columns)]

    def _output(self, column: OutputColumn) -> SparkColumn:
        value = to_column(column.remainder)
        if column.type is not None:
            value = value.cast(column.type)
        return value.alias(column.name)


def plan_aggregation(
    operator: str,
    key: tuple[Column, ...],
    aggregations: Sequence[Aggregation],
    queryable: bool,
    frame: DataFrame,
    over_changes: bool = False,
) -> AggregationPlan:
    """Plan ``aggregations`` by the columns ``key`` of ``frame``. ``over_changes``: rows can retract others.

    Raises ``PipelineError`` or ``SchemaError`` naming operator, column and fix.
    """
    taken_apart: list[Decomposed] = []
    for aggregation in aggregations:
        with at(_where(operator, aggregation.name)):
            first = sum(len(each.aggregates) for each in taken_apart)
            apart = decompose(_where(operator, aggregation.name), aggregation.expression, first)
            taken_back = tuple(map(taking_back, apart.aggregates)) if over_changes else apart.aggregates
            taken_apart.append(replace(apart, aggregates=taken_back))
    types = AggregateTypes(frame)
    wheres = [_where(operator, aggregation.name) for aggregation in aggregations]
    resolved = types.resolved(wheres, [apart.aggregates for apart in taken_apart])
    parts = [
        part
        for each, own, apart in zip(aggregations, resolved, taken_apart, strict=True)
        for part in _parts(each.name, own, apart.calls)
    ]
    columns = [
        OutputColumn(aggregation.name, type, apart.remainder)
        for aggregation, apart, type in zip(
            aggregations, taken_apart, types.of_aggregates(wheres, list(map(_as_batch, aggregations))), strict=True
        )
    ]
    if over_changes:
        parts += _parts(ROWS, [SignedCount()])
    table = StateTable(
        id=operator,
        operator=operator,
        kind=StateKind.AGGREGATE,
        key=key,
        value=_state_columns(operator, key, parts, types),
        shown=tuple(_shown(parts, columns)),
        queryable=queryable,
    )
    plan = AggregationPlan(operator=operator, table=table, parts=tuple(parts), columns=tuple(columns))
    return _without_needless_casts(plan, frame) if any(map(_is_nested, columns)) else plan


def _is_nested(column: OutputColumn) -> bool:
    return column.type is not None and nested_type(column.type) is not None


def _without_needless_casts(plan: AggregationPlan, frame: DataFrame) -> AggregationPlan:
    """Plan without casts that make elements of arrays nullable, unlike Spark's batch query."""
    uncast = replace(plan, columns=tuple(replace(column, type=None) for column in plan.columns))
    types = [type_name(field.dataType) for field in uncast.finish(uncast.unmerged(frame)).schema][len(plan.keys) :]
    columns = (
        replace(column, type=None) if _is_nested(column) and type == column.type else column
        for column, type in zip(plan.columns, types, strict=True)
    )
    return replace(plan, columns=tuple(columns))


def _parts(column: str, aggregates: Sequence[MergeableAggregate], calls: Sequence[Expression] = ()) -> list[Part]:
    parts = []
    for number, aggregate in enumerate(aggregates, 1):
        partials = aggregate.partials()
        base = column if len(aggregates) == 1 else f"{column}_{number}"
        lone = len(partials) == 1 and not aggregate.named_apart
        names = (base,) if lone else tuple(f"{base}_{kept.name}" for kept in partials)
        computed = tuple(Column(name=f"_{base}_{added.name}", type=added.type) for added in aggregate.computed())
        call = calls[number - 1] if calls else None
        parts.append(Part(column, aggregate, partials, names, computed, call))
    return parts


def _merged(part: Part, old: pa.Table, new: pa.Table, rows: pa.Array) -> pa.Table:
    return part.aggregate.merge(old.take(rows), new.take(rows))


def _computed(part: Part, merged: pa.Table, rows: pa.Array) -> pa.Table:
    return part.aggregate.compute(merged.take(rows))


def _failing(again: Again, rows: int) -> int | None:
    """First row whose value overflows its type, by bisection; ``None`` if no single row does."""
    first, end = 0, rows
    while end - first > 1:
        middle = (first + end) // 2
        first, end = (first, middle) if _fails(again, first, middle) else (middle, end)
    return first if _fails(again, first, end) else None


def _fails(again: Again, first: int, end: int) -> bool:
    try:
        again(pa.array(np.arange(first, end)))
    except OverflowError:
        return True
    return False


def _of_part(part: Part, table: pa.Table) -> pa.Table:
    """Columns of a part, with the names of its aggregate."""
    return table.select(list(part.state_columns)).rename_columns(part.names)


def _shown(parts: Sequence[Part], columns: Sequence[OutputColumn]) -> Iterator[Quotient | Shown]:
    """Values that look-ups compute for output columns that are a single aggregate."""
    by_part = {part_name(position): part for position, part in enumerate(parts)}
    for column in columns:
        part = by_part.get(str(column.remainder).strip("`"))
        if part is not None and column.type is not None:
            kept = dict(zip(part.names, part.state_columns, strict=True))
            shown = part.aggregate.shown(column.name, column.type, kept)
            if isinstance(shown, Shown):
                yield shown.model_copy(update={"kept": part.state_columns})
            elif shown is not None:
                yield shown


def _where(operator: str, column: str) -> str:
    return f"Operator {operator!r}, column {column!r}"


def _state_columns(
    operator: str, key: tuple[Column, ...], parts: Sequence[Part], types: AggregateTypes
) -> tuple[Column, ...]:
    kept = [
        (_where(operator, part.column), name, partial.expression)
        for part in parts
        for partial, name in zip(part.partials, part.state_columns, strict=True)
    ]
    found = types.of_aggregates([where for where, _, _ in kept], [expression for _, _, expression in kept])
    columns: list[Column] = []
    for (where, name, _), type in zip(kept, found, strict=True):
        assert type is not None
        with at(where):
            check_column(operator, name, type, key=False)
            columns.append(Column(name=name, type=type))
    seen = {column.name.casefold() for column in key}
    for column in columns:
        if column.name.casefold() in seen:
            raise PipelineError(
                f"Operator {operator!r}: two columns of its state have the name {column.name!r}. Rename an aggregate."
            )
        seen.add(column.name.casefold())
    return tuple(columns)


def _as_batch(aggregation: Aggregation) -> Expression | None:
    """The aggregate in a Spark batch query, for its type; ``None`` for an author's own aggregate."""
    if isinstance(aggregation.expression, MergeableAggregate):
        return None
    return rebuilt(aggregation.expression, _as_sparks)


def _as_sparks(expression: Expression) -> Expression | None:
    """Expression without arguments that Spark's function does not have."""
    call = expression.call
    if call.target is not None or not OWN_ARGUMENTS & call.named.keys():
        return None
    named = {name: value for name, value in call.named.items() if name not in OWN_ARGUMENTS}
    return Expression(Call(call.name, call.arguments, named))
