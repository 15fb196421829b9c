"""Aggregates that have a merge: what Spark computes over a slice, how two such results merge, and the value people see.

``count``, ``sum``, .. are found by the names that Spark gives them (:data:`BUILT_IN`). An author's own aggregate is a
:class:`MergeableAggregate`, given to ``aggregate`` in place of an expression.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import PipelineError
from epochal.pipeline.expressions import Expression, call
from epochal.pipeline.merging import Merge, greater, merge_columns
from epochal.state.quotients import average_type, quotients
from epochal.state.table import Column
from epochal.state.type_names import nested_type

TypeOf = Callable[[Expression], str]
"""The Spark type of an expression over the operator's input."""


@dataclass(frozen=True, eq=False)
class Partial:
    """One column that is kept in state: a Spark aggregate over the slice. ``name`` is unique within its aggregate."""

    name: str
    expression: Expression


class MergeableAggregate(ABC):
    """An aggregate kept as one or more partial columns. Must be serialisable: executors merge.

    State names a partial column after the output column, alone when there is one, else with its own name appended:
    ``mean = F.avg("delay")`` is kept as ``mean_sum`` and ``mean_count``.
    """

    cost: ClassVar[str | None] = None
    """What ``epochal check`` says of it after its name, where it costs more than a number per key."""

    @abstractmethod
    def partials(self) -> tuple[Partial, ...]:
        """What Spark computes over the rows of a slice, per key. Any Spark aggregate expression of a flat type."""

    @abstractmethod
    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """Merge, vectorised: row i of both tables belongs to one key; columns are the partials, by name, in order.

        ``old`` is null in every column where the key had no state. Must be associative.
        """

    @abstractmethod
    def final(self, partials: Sequence[Expression]) -> Expression:
        """The value that people see, from the merged partial columns, and then those that are :meth:`computed`."""

    def computed(self) -> tuple[Column, ...]:
        """Columns that :meth:`compute` adds for :meth:`final`: what Spark cannot work out. They are not kept."""
        return ()

    def compute(self, merged: pa.Table) -> pa.Table:
        """The :meth:`computed` columns, vectorised, from the merged partials. ``OverflowError``: leaves its type."""
        raise NotImplementedError(f"{type(self).__name__} declares computed columns: override compute().")

    def resolved(self, type_of: TypeOf) -> MergeableAggregate:
        """The same aggregate, once the types of its input are known. Override where the partials depend on them."""
        return self


@dataclass(frozen=True, eq=False)
class Simple(MergeableAggregate):
    """An aggregate whose partial is itself: the merged partial is the value."""

    expression: Expression
    kind: Merge
    counts: bool = False
    """Never null: Spark, too, says so of a count's column."""

    def resolved(self, type_of: TypeOf) -> Simple:
        if self.kind in (Merge.MIN, Merge.MAX):
            _check_ordered(type_of(self.expression))
        return self

    def partials(self) -> tuple[Partial, ...]:
        return (Partial("value", self.expression),)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        return pa.table({"value": merge_columns(self.kind, old["value"], new["value"])})

    def final(self, partials: Sequence[Expression]) -> Expression:
        return call("coalesce", partials[0], call("lit", 0).cast("bigint")) if self.counts else partials[0]


@dataclass(frozen=True, eq=False)
class Average(MergeableAggregate):
    """Kept as sum and count. As in Spark, the sum of decimals is exact and any other sum is a double."""

    argument: Expression
    type: str = "double"

    def resolved(self, type_of: TypeOf) -> Average:
        return Average(self.argument, average_type(type_of(self.argument)))

    @property
    def exact(self) -> bool:
        return self.type != "double"

    def partials(self) -> tuple[Partial, ...]:
        argument = self.argument if self.exact else self.argument.cast("double")
        return (Partial("sum", call("sum", argument)), Partial("count", call("count", argument)))

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        return pa.table({name: merge_columns(Merge.SUM, old[name], new[name]) for name in ("sum", "count")})

    def final(self, partials: Sequence[Expression]) -> Expression:
        total, count, *average = partials
        return average[0] if self.exact else call("when", count > 0, total / count.cast("double"))

    def computed(self) -> tuple[Column, ...]:
        return (Column(name="average", type=self.type),) if self.exact else ()

    def compute(self, merged: pa.Table) -> pa.Table:
        """Spark's division keeps fewer digits than its average, so the task divides."""
        return pa.table({"average": quotients(merged["sum"], merged["count"], self.type)})


@dataclass(frozen=True, eq=False)
class Extreme(MergeableAggregate):
    """``max_by(value, order)`` and ``min_by``: kept as both. Between equal orders the earlier epoch's value stays."""

    value: Expression
    order: Expression
    largest: bool

    def resolved(self, type_of: TypeOf) -> Extreme:
        _check_ordered(type_of(self.order))
        return self

    def partials(self) -> tuple[Partial, ...]:
        by, extreme = ("max_by", "max") if self.largest else ("min_by", "min")
        return (Partial("value", call(by, self.value, self.order)), Partial("order", call(extreme, self.order)))

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        ahead = greater(new["order"], old["order"]) if self.largest else greater(old["order"], new["order"])
        first = pc.is_null(old["order"])
        wins = pc.or_(first, pc.fill_null(ahead, False))
        return pa.table({name: pc.if_else(wins, new[name], old[name]) for name in ("value", "order")})

    def final(self, partials: Sequence[Expression]) -> Expression:
        return partials[0]


def _check_ordered(type: str) -> None:
    if nested_type(type) is not None:
        raise PipelineError(
            f"values of {type} cannot be merged by their order. Order by one flat column: max_by(value, column) keeps "
            "the value that belongs to the largest, and the value may be of any type."
        )


def _as_column(argument: Any) -> Expression:
    """Spark's functions take a column's name for the column."""
    if isinstance(argument, Expression):
        return argument
    return call("col" if isinstance(argument, str) else "lit", argument)


def _simple(name: str, kind: Merge, counts: bool = False) -> Callable[..., MergeableAggregate]:
    return lambda *arguments: Simple(call(name, *arguments), kind, counts)


BUILT_IN: dict[str, Callable[..., MergeableAggregate]] = {
    "count": _simple("count", Merge.SUM, counts=True),
    "count_if": _simple("count_if", Merge.SUM, counts=True),
    "sum": lambda column: Simple(call("sum", column), Merge.SUM),
    "min": lambda column: Simple(call("min", column), Merge.MIN),
    "max": lambda column: Simple(call("max", column), Merge.MAX),
    "avg": lambda column: Average(_as_column(column)),
    "mean": lambda column: Average(_as_column(column)),
    "bool_and": _simple("bool_and", Merge.AND),
    "every": _simple("every", Merge.AND),
    "bool_or": _simple("bool_or", Merge.OR),
    "some": _simple("some", Merge.OR),
    "bit_and": _simple("bit_and", Merge.BIT_AND),
    "bit_or": _simple("bit_or", Merge.BIT_OR),
    "bit_xor": _simple("bit_xor", Merge.BIT_XOR),
    "max_by": lambda value, order: Extreme(_as_column(value), _as_column(order), largest=True),
    "min_by": lambda value, order: Extreme(_as_column(value), _as_column(order), largest=False),
}
"""Built-in aggregates by the name of the Spark function; called with its arguments."""

_WHOLE = "needs all values at once, not one summary per slice: use process() with a MapState of the values seen"
_LIST = "grows with every row: use process() with a ListState"
_ORDER = "depends on the order of rows, which Spark does not fix: use max_by(value, time) or min_by(value, time)"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("count_distinct", "countDistinct", "countdistinct", "sum_distinct", "sumDistinct"), _WHOLE),
    **dict.fromkeys(("sumdistinct", "approx_count_distinct", "approxCountDistinct"), _WHOLE),
    **dict.fromkeys(("median", "mode", "percentile", "percentile_approx", "approx_percentile"), _WHOLE),
    **dict.fromkeys(("collect_list", "collect_set", "array_agg", "listagg", "string_agg"), _LIST),
    **dict.fromkeys(("first", "last", "any_value", "first_value", "last_value"), _ORDER),
    **dict.fromkeys(
        ("stddev", "stddev_samp", "stddev_pop", "std", "variance", "var_samp", "var_pop", "skewness", "kurtosis"),
        "is not kept exactly: aggregate count(x), sum(x) and sum(x * x), and compute it from these downstream",
    ),
}
"""Spark aggregates that are known and cannot be merged: why, and what to do."""
