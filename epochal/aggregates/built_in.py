"""Built-in aggregates by the names of Spark's functions, and refused ones with the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from epochal.aggregates.collected import (
    LARGEST_LIMIT,
    USUAL_LIMIT,
    CollectedList,
    CollectedSet,
    DistinctSum,
    ExactDistinctCount,
)
from epochal.aggregates.mergeable import Average, Extreme, MergeableAggregate, Simple
from epochal.aggregates.merging import Merge
from epochal.aggregates.moments import Correlation, Covariance, Variance
from epochal.aggregates.sketches import LARGEST_ACCURACY, USUAL_ACCURACY, USUAL_DEVIATION, DistinctCount, Percentile
from epochal.declarations.expressions import Expression, call
from epochal.errors import PipelineError

_ARRAY = re.compile(r"\s*array\s*\((.*)\)\s*", re.IGNORECASE)

Make = Callable[..., MergeableAggregate]


def as_column(argument: Any) -> Expression:
    """Convert a column's name to a column, as Spark's functions do."""
    if isinstance(argument, Expression):
        return argument
    return call("col" if isinstance(argument, str) else "lit", argument)


def _simple(name: str, kind: Merge, counts: bool = False) -> Make:
    return lambda *arguments: Simple(call(name, *arguments), kind, counts)


def _variance(*, sample: bool, root: bool) -> Make:
    return lambda col: Variance(as_column(col), sample, root)


def _covariance(*, sample: bool) -> Make:
    return lambda col1, col2: Covariance(as_column(col1), as_column(col2), sample)


def _extreme(*, largest: bool) -> Make:
    return lambda col, ord: Extreme(as_column(col), as_column(ord), largest)


def _placed(*, largest: bool) -> Make:
    """``first`` and ``last`` by an explicit order."""

    def make(col: Any, ignorenulls: Any = False, *, order_by: Any) -> Extreme:
        value, order = as_column(col), _order(order_by)
        return Extreme(value, call("when", value.isNotNull(), order) if ignorenulls is True else order, largest)

    return make


def _order(order_by: Any) -> Expression:
    """One column, or several columns that are compared in sequence."""
    if not isinstance(order_by, (list, tuple)):
        return as_column(order_by)
    if not order_by:
        raise PipelineError("order_by names no column")
    return call("struct", *map(as_column, order_by))


def _percentile(col: Any, percentage: Any, accuracy: Any = USUAL_ACCURACY) -> Percentile:
    several = _elements(percentage)
    shares = [_number("percentage", each) for each in ([percentage] if several is None else several)]
    for share in shares:
        if not 0 <= share <= 1:
            raise PipelineError(f"the percentage {share:g} is not between 0 and 1")
    exactness = _number("accuracy", accuracy)
    if not 1 <= exactness <= LARGEST_ACCURACY:
        raise PipelineError(
            f"the accuracy {exactness:g} is not between 1 and {LARGEST_ACCURACY}: the rank's error is 1 / accuracy"
        )
    return Percentile(as_column(col), tuple(shares) if several is not None else shares[0], int(exactness))


def _distinct_count(col: Any, rsd: Any = USUAL_DEVIATION) -> DistinctCount:
    deviation = _number("rsd", rsd)
    if not 0.001 <= deviation <= 0.39:
        raise PipelineError(f"the relative standard deviation {deviation:g} is not between 0.001 and 0.39")
    return DistinctCount(as_column(col), deviation)


def _collected(kind: type[CollectedList]) -> Make:
    def make(col: Any, *more: Any, limit: Any = USUAL_LIMIT) -> CollectedList:
        if more or (isinstance(col, str) and col == "*"):
            raise PipelineError("takes one column; for several, collect to_json(struct(..)) of rows without nulls")
        number = _number("limit", limit)
        if not 1 <= number <= LARGEST_LIMIT:
            raise PipelineError(f"the limit {number:.0f} is not between 1 and {LARGEST_LIMIT}")
        return kind(as_column(col), int(number))

    return make


def _elements(value: Any) -> Sequence[Any] | None:
    """Elements of a literal array; ``None`` for other expressions."""
    if isinstance(value, Expression) and value.call.name == "array":
        value = value.call.arguments
    if isinstance(value, Expression) and value.call.name == "expr":
        text = _ARRAY.fullmatch(str(value))
        return text and [part.strip() for part in text[1].split(",")]
    return value if isinstance(value, (list, tuple)) else None


def _number(what: str, value: Any) -> float:
    """A literal number, in SQL text or Python: the size of a sketch does not depend on rows."""
    if isinstance(value, Expression) and value.call.name in ("expr", "lit") and len(value.call.arguments) == 1:
        value = value.call.arguments[0]
    try:
        return float(value.rstrip("dDfFlL") if isinstance(value, str) else value)
    except (TypeError, ValueError):
        raise PipelineError(f"the {what} is {value}; it must be a number") from None


BUILT_IN: dict[str, Make] = {
    "count": _simple("count", Merge.SUM, counts=True),
    "count_if": _simple("count_if", Merge.SUM, counts=True),
    "sum": lambda column: Simple(call("sum", column), Merge.SUM),
    "min": lambda column: Simple(call("min", column), Merge.MIN),
    "max": lambda column: Simple(call("max", column), Merge.MAX),
    **dict.fromkeys(("avg", "mean"), lambda column: Average(as_column(column))),
    "bool_and": _simple("bool_and", Merge.AND),
    "every": _simple("every", Merge.AND),
    "bool_or": _simple("bool_or", Merge.OR),
    "some": _simple("some", Merge.OR),
    "bit_and": _simple("bit_and", Merge.BIT_AND),
    "bit_or": _simple("bit_or", Merge.BIT_OR),
    "bit_xor": _simple("bit_xor", Merge.BIT_XOR),
    "max_by": _extreme(largest=True),
    "min_by": _extreme(largest=False),
    **dict.fromkeys(("first", "first_value"), _placed(largest=False)),
    **dict.fromkeys(("last", "last_value"), _placed(largest=True)),
    **dict.fromkeys(("stddev", "stddev_samp", "std"), _variance(sample=True, root=True)),
    "stddev_pop": _variance(sample=False, root=True),
    **dict.fromkeys(("variance", "var_samp"), _variance(sample=True, root=False)),
    "var_pop": _variance(sample=False, root=False),
    "covar_samp": _covariance(sample=True),
    "covar_pop": _covariance(sample=False),
    "corr": lambda col1, col2: Correlation(as_column(col1), as_column(col2)),
    **dict.fromkeys(("collect_list", "array_agg"), _collected(CollectedList)),
    "collect_set": _collected(CollectedSet),
    **dict.fromkeys(("count_distinct", "countDistinct"), _collected(ExactDistinctCount)),
    **dict.fromkeys(("sum_distinct", "sumDistinct"), _collected(DistinctSum)),
    **dict.fromkeys(("approx_count_distinct", "approxCountDistinct"), _distinct_count),
    **dict.fromkeys(("percentile_approx", "approx_percentile"), _percentile),
}
"""Built-in aggregates by the name of the Spark function; called with its arguments. In SQL, case does not matter."""

OWN_ARGUMENTS = frozenset({"order_by", "limit"})
"""Arguments that Spark's functions do not have."""
_BY_NAME = OWN_ARGUMENTS | {"rsd", "percentage", "accuracy", "ignorenulls"}
DISTINCT = {
    "count": "count_distinct",
    "sum": "sum_distinct",
    "collect_list": "collect_set",
    "array_agg": "collect_set",
    **{name: name for name in ("min", "max", "bool_and", "bool_or", "every", "some", "collect_set")},
}
"""Aggregates for ``name(DISTINCT ..)`` in SQL."""
FILTERED_BY_FIRST = frozenset({"approx_count_distinct", "percentile_approx", "approx_percentile"})
"""Aggregates that are filtered by a null first argument; all others by a null last argument."""

_WHOLE = "needs all values together, not one summary per slice"
_RANKS = f"{_WHOLE}: use percentile_approx(x, 0.5), or process() with a MapState of the values seen"
_MODE = f"{_WHOLE}: use process() with a MapState of how often each value was seen"
_LIST = "grows with every row: use process() with a ListState"
_ORDER = (
    "depends on the order of rows, which neither Spark nor the division into epochs determines. Specify the order: "
    "F.first('v', order_by='time') and F.last('v', order_by='time'), in SQL min_by(v, time) and max_by(v, time)"
)
_POWERS = "is not kept: aggregate count(x), sum(x), sum(x * x), .. as decimals, and compute it from these downstream"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("median", "percentile", "percentile_cont", "percentile_disc"), _RANKS),
    "mode": _MODE,
    **dict.fromkeys(("listagg", "string_agg"), _LIST),
    "any_value": "is a row of chance: use min(v) or max(v), or max_by(v, time)",
    **dict.fromkeys(("skewness", "kurtosis"), _POWERS),
}
"""Spark aggregates that cannot be merged: the reason and the fix."""
UNORDERED = dict.fromkeys(("first", "first_value", "last", "last_value"), _ORDER)
"""Aggregates that need an order, without one."""


def built_in(name: str, arguments: Sequence[Any], named: dict[str, Any]) -> MergeableAggregate:
    """The aggregate ``name`` of these arguments. Raises ``PipelineError`` without the location."""
    if name in UNORDERED and "order_by" not in named:
        raise PipelineError(f"{name} {UNORDERED[name]}.")
    arguments = [*arguments, *(value for key, value in named.items() if key not in _BY_NAME)]
    named = {key: value for key, value in named.items() if key in _BY_NAME}
    try:
        return BUILT_IN[name](*arguments, **named)
    except TypeError:
        shown = [*map(str, arguments), *(f"{key}={value}" for key, value in named.items())]
        raise PipelineError(f"{name} does not take {len(shown)} arguments ({', '.join(shown)}).") from None
    except PipelineError as error:
        raise PipelineError(f"{name}: {error.message}.") from None
