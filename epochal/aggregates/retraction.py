"""Aggregates over a stream of changes: they add new rows and subtract old ones; :data:`CHANGE` is +1 and -1.

The results are exact and equal those of a batch query over the newest rows, for any division into epochs: counts, sums
and averages of integers and decimals. For minimum and maximum the task keeps the number of occurrences of each value
(:mod:`epochal.operators.aggregate.changes_work`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.built_in import as_column
from epochal.aggregates.mergeable import Average, MergeableAggregate, Partial, Simple, TypeOf
from epochal.aggregates.merging import Merge, add_wider, merge_columns
from epochal.contracts.stream_kind import CHANGE
from epochal.declarations.expressions import Expression, call, column
from epochal.errors import PipelineError
from epochal.state.table import Shown
from epochal.state.type_names import decimal_of
from epochal.state.types import FLOATING, INTEGER_BITS, is_key_type

ROWS = "_rows"
"""State column with the number of rows of the key; a key without rows is removed."""
VALUE, TIMES = "value", "times"
"""Fields of a change of a minimum or maximum: a value, and the change of its number of occurrences."""

_WIDEST = "decimal(38,0)"
_INSTEAD = "count, count_if, sum, avg, min or max, or aggregate the rows that the operator before it reads"


def taking_back(aggregate: MergeableAggregate) -> MergeableAggregate:
    """The same aggregate over changes. Raises ``PipelineError`` with the fix, without the location."""
    match aggregate:
        case Average():
            return SignedAverage(aggregate.argument)
        case Simple(expression=expression):
            return _of_simple(expression)
        case _:
            raise PipelineError(
                f"this aggregate cannot retract rows, which a stream of changes requires. Use {_INSTEAD}."
            )


def _of_simple(expression: Expression) -> MergeableAggregate:
    name, arguments = expression.call.name, list(map(as_column, expression.call.arguments))
    match name:
        case "count":
            return SignedCount(tuple(each for each in arguments if str(each).strip() != "*"))
        case "count_if":
            return SignedCount(tuple(call("when", each, 1) for each in arguments))
        case "sum":
            return SignedSum(arguments[0])
        case "min" | "max":
            return LeastOrGreatest(arguments[0], largest=name == "max")
        case _:
            raise PipelineError(f"{name} cannot retract rows, which a stream of changes requires. Use {_INSTEAD}.")


def _signed(value: Expression) -> Expression:
    return call("when", column(CHANGE) < 0, -value).otherwise(value)


def _counted(values: Sequence[Expression]) -> Expression:
    """Number of rows in which none of these values is null."""
    change = column(CHANGE).cast("bigint")
    if values:
        change = call("when", reduce(lambda one, other: one & other, (each.isNotNull() for each in values)), change)
    return call("coalesce", call("sum", change), call("lit", 0).cast("bigint"))


def _sum(name: str, old: pa.Table, new: pa.Table) -> Any:
    return merge_columns(Merge.SUM, old[name], new[name])


@dataclass(frozen=True, eq=False)
class SignedCount(MergeableAggregate):
    """Signed count of the rows in which none of ``values`` is null."""

    values: tuple[Expression, ...] = ()

    def partials(self) -> tuple[Partial, ...]:
        return (Partial("count", _counted(self.values)),)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        return pa.table({"count": _sum("count", old, new)})

    def final(self, partials: Sequence[Expression]) -> Expression:
        return call("coalesce", partials[0], call("lit", 0).cast("bigint"))


@dataclass(frozen=True, eq=False)
class SignedSum(MergeableAggregate):
    """Signed sum, kept with the number of values, since the sum of no values is null."""

    argument: Expression
    type: str = ""
    always_merged: ClassVar[bool] = True

    def resolved(self, type_of: TypeOf) -> SignedSum:
        return SignedSum(self.argument, _exact("sum", type_of(self.argument)))

    def partials(self) -> tuple[Partial, ...]:
        return _sum_and_count(self.argument, self.type, "bigint")

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        return _merged(old, new)

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        return Shown(name=name, type=type, function="same", columns=(kept["sum"],))

    def final(self, partials: Sequence[Expression]) -> Expression:
        return partials[0]


@dataclass(frozen=True, eq=False)
class SignedAverage(Average):
    """Signed average. The sum of integers is exact, whereas Spark adds doubles."""

    number: str = ""
    always_merged: ClassVar[bool] = True

    def resolved(self, type_of: TypeOf) -> SignedAverage:
        number = _exact("avg", type_of(self.argument))
        return SignedAverage(self.argument, super().resolved(type_of).type, number)

    def partials(self) -> tuple[Partial, ...]:
        return _sum_and_count(self.argument, self.number, _WIDEST)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        return _merged(old, new)

    def final(self, partials: Sequence[Expression]) -> Expression:
        total, *others = partials
        return super().final([total if self.exact else total.cast("double"), *others])


@dataclass(frozen=True, eq=False)
class LeastOrGreatest(MergeableAggregate):
    """``min`` and ``max``: the task keeps the number of occurrences of each value; Spark computes the changes of
    these."""

    argument: Expression
    largest: bool
    always_merged: ClassVar[bool] = True
    cost: ClassVar[str | None] = (
        "over changes stores every distinct value of a key, with its count, as a separate row of state: the next "
        "value counts when one is retracted."
    )

    def resolved(self, type_of: TypeOf) -> LeastOrGreatest:
        type = type_of(self.argument)
        if not (is_key_type(type) or type in FLOATING):
            raise PipelineError(
                f"{self._name} over changes does not support {type}, whose values have no order. "
                "Cast it to a number, a string, a date or a timestamp."
            )
        return self

    @property
    def _name(self) -> str:
        return "max" if self.largest else "min"

    def partials(self) -> tuple[Partial, ...]:
        change = call("struct", self.argument.alias(VALUE), column(CHANGE).cast("bigint").alias(TIMES))
        sent = call("collect_list", call("when", self.argument.isNotNull(), change))
        return (Partial("value", call(self._name, self.argument), sent),)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        return new

    def final(self, partials: Sequence[Expression]) -> Expression:
        return partials[0]


def _exact(function: str, type: str) -> str:
    if type in INTEGER_BITS or decimal_of(type) is not None:
        return type
    raise PipelineError(
        f"{function} of {type} over changes would not be exact. Cast the argument to decimal(p,s), or to bigint."
    )


def _sum_and_count(argument: Expression, type: str, integers: str) -> tuple[Partial, ...]:
    """``integers``: the type of the sum of integers."""
    count = Partial("count", _counted([argument]))
    if type not in INTEGER_BITS:
        return (Partial("sum", call("sum", _signed(argument))), count)
    # Intermediate sums may be greater than the total, and the smallest bigint has no opposite. Only the total must fit.
    exact = call("sum", _signed(argument.cast("decimal(20,0)" if type == "bigint" else "bigint")))
    return (Partial("sum", exact.cast(integers), sent=exact if type == integers else None), count)


def _merged(old: pa.Table, new: pa.Table) -> pa.Table:
    count = _sum("count", old, new)
    total = add_wider(old["sum"], new["sum"])
    return pa.table({"sum": pc.if_else(pc.equal(count, 0), pa.scalar(None, total.type), total), "count": count})
