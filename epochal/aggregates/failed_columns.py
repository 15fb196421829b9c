"""Location of a computation that fails inside Spark, whose error names neither operator nor column.

After a failed epoch, the aggregates of its rows are computed again: first all of an operator, then column by column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.aggregates.plan import Aggregation, AggregationPlan
from epochal.declarations.expressions import call, column, to_column
from epochal.declarations.references import columns_needed
from epochal.declarations.spark_errors import computation_error
from epochal.errors import ComputationFailed
from epochal.state.type_names import is_number, quoted, wider_argument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OVERFLOW = re.compile(r"\[(?:\w*ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|CAST_OVERFLOW)\b")


def located(
    plan: AggregationPlan, aggregations: Sequence[Aggregation], partials: list[Column], frame: DataFrame
) -> ComputationFailed | None:
    """Error that names operator and column; ``None`` if no aggregate of these rows fails."""
    if _failure_by_key(plan, frame, partials) is None:
        return None
    read = columns_needed(kept.computed for part in plan.parts for kept in part.partials)
    if read is not None:  # a source may have left out unread columns
        names = {*read, *(name.casefold() for name in plan.keys)}
        frame = frame.select(*(quoted(name) for name in frame.columns if name.casefold() in names))
    before = failure(frame)
    if before is not None:
        if _OVERFLOW.search(before):
            return ComputationFailed(
                f"A number leaves its type in the columns that operator {plan.operator!r} reads. "
                "Cast their inputs: integers to decimal(38,0), decimals to more digits, or both to "
                "double."
            )
        return ComputationFailed(
            f"The columns that operator {plan.operator!r} reads cannot be computed: {computation_error(before)}"
        )
    for aggregation in aggregations:
        partials_of = {
            name: to_column(kept.computed).alias(name)
            for part in plan.parts
            if part.column == aggregation.name
            for kept, name in zip(part.partials, part.state_columns, strict=True)
        }
        found = _failure_by_key(plan, frame, list(partials_of.values()))
        if found is not None:
            where = f"Operator {plan.operator!r}, column {aggregation.name!r}"
            if _OVERFLOW.search(found):
                key = _overflowing_key(plan, frame, aggregation.name)
                if key is not None:
                    where += f", key {key}"
                types = {column.name: column.type for column in plan.table.value}
                numbers = (types[name] for name in partials_of if is_number(types[name]))
                return ComputationFailed(
                    f"{where}: within one epoch, a number leaves its type in {aggregation.expression}. "
                    f"{wider_argument(next(numbers, None))}"
                )
            return ComputationFailed(
                f"{where}: {aggregation.expression} cannot be computed: {computation_error(found)}"
            )
    return None


def failure(frame: DataFrame) -> str | None:
    """Spark's error if computing all columns fails; the result is discarded."""
    from pyspark.errors import PySparkException

    try:
        frame.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        return str(error) if computation_error(str(error)) is not None else None
    return None


def _failure_by_key(plan: AggregationPlan, frame: DataFrame, partials: list[Column]) -> str | None:
    return failure(frame.groupBy(*(to_column(column(name)) for name in plan.keys)).agg(*partials))


def _overflowing_key(plan: AggregationPlan, frame: DataFrame, column_name: str) -> str | None:
    """Key whose sum overflows, found by Spark's ``try_sum``; ``None`` if another function fails."""
    from pyspark.errors import PySparkException

    for part in plan.parts:
        for kept in part.partials if part.column == column_name else ():
            name, arguments = kept.computed.call.name, kept.computed.call.arguments
            if name != "sum" or len(arguments) != 1:
                continue
            tried = to_column(call("try_sum", *arguments).isNull() & (call("count", *arguments) > 0))
            keys = [to_column(column(key)) for key in plan.keys]
            try:
                found = frame.groupBy(*keys).agg(tried.alias("_failed")).where("_failed").drop("_failed").head()
            except PySparkException:
                continue
            if found is not None:
                return f"({', '.join(f'{key}={value!r}' for key, value in zip(plan.keys, found, strict=True))})"
    return None
