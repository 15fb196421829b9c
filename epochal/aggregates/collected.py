"""Aggregates that keep values: lists, sets, exact distinct counts and sums. State grows with the number of values, up
to a limit.

A list is kept in the order of its values, independent of the order of rows; a set holds each value once. Order and
equality are Spark's: NaN equals itself and is above all numbers, and there is one zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.mergeable import MergeableAggregate, Partial, TypeOf
from epochal.declarations.expressions import Expression, call
from epochal.errors import PipelineError
from epochal.state.lists import ELEMENT, LIST, elements, totals
from epochal.state.table import Column, Shown
from epochal.state.type_names import array_name, decimal_of
from epochal.state.types import DAY_TIME_INTERVALS, FLOATING, INTEGER_BITS, is_key_type

USUAL_LIMIT = 10_000
"""Default maximum number of values per key."""
LARGEST_LIMIT = 100_000_000

_KEPT = (
    "in the state of their key, and writes them again in every epoch that has rows of the key; "
    f"more than {USUAL_LIMIT} of one key fail the epoch, unless limit=.. sets another number."
)


@dataclass(frozen=True, eq=False)
class CollectedList(MergeableAggregate):
    """``collect_list``: every value that is not null, smallest first."""

    argument: Expression
    limit: int = USUAL_LIMIT
    type: str = ""

    function: ClassVar[str] = "collect_list"
    distinct: ClassVar[bool] = False
    always_merged = True
    advice = "Set a higher limit=.., or keep the values in a ListState of process()."
    cost = f"keeps all values {_KEPT}"

    def resolved(self, type_of: TypeOf) -> MergeableAggregate:
        type = type_of(self.argument)
        if not (is_key_type(type) or type in FLOATING or type in DAY_TIME_INTERVALS):
            raise PipelineError(
                f"{self.function} does not support {type}, whose values have no order. "
                "Use to_json(..), or a ListState in process()."
            )
        return replace(self, type=type)

    def partials(self) -> tuple[Partial, ...]:
        return (Partial("values", call("collect_set" if self.distinct else "collect_list", self.argument)),)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        rows = pa.concat_tables([elements(side["values"]) for side in (old, new)])
        if self.type in FLOATING:
            # Adding zero turns -0.0 into 0.0, so that the result does not depend on the order of rows.
            zero = pa.scalar(0, rows[ELEMENT].type)
            rows = pa.table({LIST: rows[LIST], ELEMENT: pc.add(rows[ELEMENT], zero)})
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(LIST, "ascending"), (ELEMENT, "ascending")]))
        rows = rows.combine_chunks()
        if self.distinct:
            rows = rows.filter(_first_of_equals(rows))
        counts = np.bincount(rows[LIST].to_numpy(), minlength=old.num_rows)
        if counts.max(initial=0) > self.limit:
            raise OverflowError(f"{self.function} has {counts.max()} values for one key; the limit is {self.limit}")
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        values = rows[ELEMENT].combine_chunks()
        return pa.table({"values": pa.ListArray.from_arrays(offsets, values).cast(new["values"].type)})

    def final(self, partials: Sequence[Expression]) -> Expression:
        # As in Spark, neither such an array nor its elements are nullable.
        return call("array_compact", call("coalesce", partials[0], call("array").cast(array_name(self.type))))


@dataclass(frozen=True, eq=False)
class CollectedSet(CollectedList):
    """``collect_set``: each value that is not null, once, smallest first."""

    function = "collect_set"
    distinct = True
    cost = f"keeps all distinct values {_KEPT}"


@dataclass(frozen=True, eq=False)
class ExactDistinctCount(CollectedSet):
    """``count(DISTINCT x)``: kept as the set."""

    function = "count(DISTINCT ..)"
    advice = "Set a higher limit=.., or use approx_count_distinct, which keeps a sketch."
    cost = f"{CollectedSet.cost} approx_count_distinct keeps a sketch of some hundred bytes."

    named_apart = True

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        return Shown(name=name, type=type, function="size", columns=(kept["values"],))

    def final(self, partials: Sequence[Expression]) -> Expression:
        return call("coalesce", call("size", partials[0]), call("lit", 0)).cast("bigint")


@dataclass(frozen=True, eq=False)
class DistinctSum(CollectedSet):
    """``sum(DISTINCT x)``: kept as the set. The task computes the sum, so that an overflow names operator and
    column."""

    function = "sum(DISTINCT ..)"
    named_apart = True
    advice = "Say limit=.. if a key may have more values."

    def resolved(self, type_of: TypeOf) -> MergeableAggregate:
        type = type_of(self.argument)
        if type not in (*INTEGER_BITS, *FLOATING) and decimal_of(type) is None:
            raise PipelineError(f"{self.function} does not support {type}: cast it to bigint, double or decimal(p,s).")
        return super().resolved(type_of)

    @property
    def _total_type(self) -> str:
        decimal = decimal_of(self.type)
        if decimal is None:
            return "bigint" if self.type in INTEGER_BITS else "double"
        return f"decimal({min(decimal[0] + 10, 38)},{decimal[1]})"

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        return Shown(name=name, type=type, function="total", columns=(kept["values"],))

    def computed(self) -> tuple[Column, ...]:
        return (Column(name="total", type=self._total_type),)

    def compute(self, merged: pa.Table) -> pa.Table:
        return pa.table({"total": totals(merged["values"], self._total_type)})

    def final(self, partials: Sequence[Expression]) -> Expression:
        return partials[1]


def _first_of_equals(rows: pa.Table) -> Any:
    """Mask of sorted rows that differ from the previous row."""
    if rows.num_rows == 0:
        return pa.array([], pa.bool_())
    columns = [(column.slice(0, len(column) - 1), column.slice(1)) for column in rows.columns]
    (list_before, list_of), (before, value) = columns
    differs = pc.not_equal(before, value)
    if pa.types.is_floating(value.type):
        differs = pc.and_(differs, pc.invert(pc.and_(pc.is_nan(before), pc.is_nan(value))))
    follows = pc.or_(pc.not_equal(list_before, list_of), differs)
    return pa.chunked_array([pa.array([True]), *follows.chunks], pa.bool_())
