"""Counts, sums and extremes of columns without Spark: plans of them, and what Spark would give to their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from epochal.aggregates.decomposition import decompose, part_name
from epochal.aggregates.mergeable import Simple
from epochal.aggregates.plan import Aggregation, AggregationPlan, OutputColumn, Part
from epochal.declarations.expressions import Expression
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import type_name

_FUNCTIONS: Final = ("count", "sum", "min", "max")


def local_aggregation(
    operator: str, key: tuple[Column, ...], aggregations: Sequence[Aggregation], queryable: bool, rows: pa.Schema
) -> AggregationPlan:
    """As ``plan_aggregation``. Raises ``ValueError`` for what is no count, sum, min or max of a column of integers."""
    parts, columns, kept = [], [], []
    for aggregation in aggregations:
        found = decompose(aggregation.name, aggregation.expression)
        (aggregate,) = found.aggregates
        written = str(found.remainder).strip("`")
        if not isinstance(aggregate, Simple) or written != part_name(0):
            raise ValueError(f"{aggregation.name}: {aggregation.expression} is not computed without Spark")
        function, argument = _called(aggregate.expression)
        type = "bigint" if function in ("count", "sum") else type_name(from_arrow_type(rows.field(argument).type))
        parts.append(Part(aggregation.name, aggregate, aggregate.partials(), (aggregation.name,)))
        columns.append(OutputColumn(aggregation.name, type, found.remainder))
        kept.append(Column(name=aggregation.name, type=type))
    table = StateTable(
        id=operator, operator=operator, kind=StateKind.AGGREGATE, key=key, value=tuple(kept), queryable=queryable
    )
    return AggregationPlan(operator=operator, table=table, parts=tuple(parts), columns=tuple(columns))


def partials(plan: AggregationPlan, rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """What Spark makes of an epoch's rows: of each group the columns ``by`` and the plan's partial columns."""
    calls = [_called(part.partials[0].expression) for part in plan.parts]
    asked = [([], "count_all") if argument == "*" else (argument, function) for function, argument in calls]
    grouped = rows.group_by(list(by), use_threads=False).aggregate(asked)
    names = ["count_all" if argument == "*" else f"{argument}_{function}" for function, argument in calls]
    arrays = [grouped[name] for name in (*by, *names)]
    return pa.table(arrays, names=[*by, *(part.column for part in plan.parts)])


def _called(expression: Expression) -> tuple[str, str]:
    """The aggregate's function and the column that it is of, or ``*``."""
    call = expression.call
    (argument,) = call.arguments
    if call.name not in _FUNCTIONS:
        raise ValueError(f"{expression} is not computed without Spark")
    return call.name, str(argument).strip("`")
