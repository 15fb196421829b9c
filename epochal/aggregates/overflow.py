"""Where a number left its type inside Spark, whose error names neither operator nor column.

Only a failed epoch pays: the aggregates of its rows are computed once more, first all of an operator, then column by
column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.aggregates.plan import Aggregation, AggregationPlan
from epochal.declarations.expressions import column, to_column
from epochal.declarations.references import columns_needed
from epochal.errors import EpochAborted
from epochal.state.decimals import is_number, wider_argument
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OVERFLOW = re.compile(r"\[(?:\w*ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|CAST_OVERFLOW)\b")


def is_overflow(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and _OVERFLOW.search(str(error)) is not None


def located(
    plan: AggregationPlan, aggregations: Sequence[Aggregation], partials: list[Column], frame: DataFrame
) -> EpochAborted | None:
    """The error that names operator and column; ``None`` where no aggregate of these rows overflows."""
    if not _overflows(plan, frame, partials):
        return None
    read = columns_needed(kept.computed for part in plan.parts for kept in part.partials)
    if read is not None:  # others may have been left out by a source
        names = {*read, *(name.casefold() for name in plan.keys)}
        frame = frame.select(*(quoted(name) for name in frame.columns if name.casefold() in names))
    if _fails(frame):
        return EpochAborted(
            f"A number leaves its type in the columns that operator {plan.operator!r} reads. "
            "Cast what they are computed from: integers to decimal(38,0), decimals to more digits, or both to double."
        )
    for aggregation in aggregations:
        partials_of = {
            name: to_column(kept.computed).alias(name)
            for part in plan.parts
            if part.column == aggregation.name
            for kept, name in zip(part.partials, part.state_columns, strict=True)
        }
        if _overflows(plan, frame, list(partials_of.values())):
            types = {column.name: column.type for column in plan.table.value}
            numbers = (types[name] for name in partials_of if is_number(types[name]))
            return EpochAborted(
                f"Operator {plan.operator!r}, column {aggregation.name!r}: within one epoch, a number leaves its type "
                f"in {aggregation.expression}. {wider_argument(next(numbers, None))}"
            )
    return None


def _overflows(plan: AggregationPlan, frame: DataFrame, partials: list[Column]) -> bool:
    return _fails(frame.groupBy(*(to_column(column(name)) for name in plan.keys)).agg(*partials))


def _fails(frame: DataFrame) -> bool:
    """Whether computing all columns overflows; nothing is kept."""
    from pyspark.errors import PySparkException

    try:
        frame.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        return is_overflow(error)
    return False
