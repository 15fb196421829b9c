"""Aggregates that keep values: lists, sets, exact distinct counts and sums. State grows with what is kept, to a limit.

A list is kept in order of its values, which is the same however rows came; a set holds each value once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import PipelineError
from epochal.pipeline.aggregates import MergeableAggregate, Partial, TypeOf
from epochal.pipeline.expressions import Expression, call
from epochal.state.table import Shown
from epochal.state.type_names import array_name
from epochal.state.types import DAY_TIME_INTERVALS, FLOATING, INTEGER_BITS, decimal_of, is_key_type

USUAL_LIMIT = 10_000
"""Values per key, where the author does not say."""

_WIDEST = 27
"""Digits of a decimal whose sum Spark adds up without a loss."""
_PARENT, _VALUE = "parent", "value"


@dataclass(frozen=True, eq=False)
class CollectedList(MergeableAggregate):
    """``collect_list``: every value that is not null, smallest first."""

    argument: Expression
    limit: int = USUAL_LIMIT
    type: str = ""

    function: ClassVar[str] = "collect_list"
    distinct: ClassVar[bool] = False
    always_merged = True
    advice = "Say limit=.. where so many are meant, or keep the values in a ListState of process()."
    cost = (
        "keeps all values in the state of their key, and writes them again in every epoch that has rows of the key; "
        f"more than {USUAL_LIMIT} values of one key fail the epoch, unless limit=.. says another number."
    )

    def resolved(self, type_of: TypeOf) -> MergeableAggregate:
        type = type_of(self.argument)
        if not (is_key_type(type) or type in FLOATING or type in DAY_TIME_INTERVALS):
            raise PipelineError(
                f"{self.function} cannot be kept of {type}: values are kept in their order. "
                "Use to_json(..) of it, or keep it in a ListState of process()."
            )
        return replace(self, type=type)

    def partials(self) -> tuple[Partial, ...]:
        value = self.argument
        if self.type in FLOATING:  # One zero: a set must not depend on which of them came first.
            value = call("when", value != 0, value).otherwise(value * 0)
        return (Partial("values", call("sort_array", call("collect_set" if self.distinct else "collect_list", value))),)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        rows = pa.concat_tables([_flat(side["values"]) for side in (old, new)])
        if self.distinct:
            rows = rows.group_by([_PARENT, _VALUE]).aggregate([])
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(_PARENT, "ascending"), (_VALUE, "ascending")]))
        counts = np.bincount(rows[_PARENT].to_numpy(), minlength=old.num_rows)
        if counts.max(initial=0) > self.limit:
            raise OverflowError(f"{self.function} has {counts.max()} values of one key, and its limit is {self.limit}")
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        values = rows[_VALUE].combine_chunks()
        return pa.table({"values": pa.ListArray.from_arrays(offsets, values).cast(new["values"].type)})

    def final(self, partials: Sequence[Expression]) -> Expression:
        # Spark, too, says that neither such an array nor its elements are null.
        return call("array_compact", call("coalesce", partials[0], call("array").cast(array_name(self.type))))


@dataclass(frozen=True, eq=False)
class CollectedSet(CollectedList):
    """``collect_set``: each value that is not null, once, smallest first."""

    function = "collect_set"
    distinct = True


@dataclass(frozen=True, eq=False)
class ExactDistinctCount(CollectedSet):
    """``count(DISTINCT x)``: kept as the set."""

    function = "count(DISTINCT ..)"
    advice = "Say limit=.. where so many are meant, or use approx_count_distinct, which keeps a sketch."
    cost = f"{CollectedList.cost} approx_count_distinct keeps a sketch of some hundred bytes."

    named_apart = True

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        return Shown(name=name, type=type, function="size", columns=(kept["values"],))

    def final(self, partials: Sequence[Expression]) -> Expression:
        return call("coalesce", call("size", partials[0]), call("lit", 0)).cast("bigint")


@dataclass(frozen=True, eq=False)
class DistinctSum(CollectedSet):
    """``sum(DISTINCT x)``: kept as the set."""

    function = "sum(DISTINCT ..)"
    named_apart = True

    def resolved(self, type_of: TypeOf) -> MergeableAggregate:
        type = type_of(self.argument)
        decimal = decimal_of(type)
        if type not in (*INTEGER_BITS, *FLOATING) and (decimal is None or decimal[0] > _WIDEST):
            raise PipelineError(f"{self.function} cannot be kept of {type}: cast it to bigint or decimal({_WIDEST},s).")
        return super().resolved(type_of)

    def final(self, partials: Sequence[Expression]) -> Expression:
        decimal = decimal_of(self.type)
        type = "bigint" if self.type in INTEGER_BITS else "double"
        if decimal is not None:
            type = f"decimal({decimal[0] + 10},{decimal[1]})"
        zero = call("lit", 0).cast(type)
        total = call("aggregate", partials[0], zero, lambda sum, value: (sum + value).cast(type))
        return call("when", call("size", partials[0]) > 0, total)


def _flat(lists: Any) -> pa.Table:
    """One row per element; ``parent`` is the number of its list. Null lists have no elements."""
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    return pa.table({_PARENT: pc.list_parent_indices(lists), _VALUE: pc.list_flatten(lists)})
