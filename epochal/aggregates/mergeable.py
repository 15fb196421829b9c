"""Mergeable aggregates: partials that Spark computes over a slice, their merge, and the final value.

``count``, ``sum``, .. are found by Spark's names (:mod:`epochal.aggregates.built_in`). An author's
own aggregate is a :class:`MergeableAggregate`, passed to ``aggregate`` in place of an expression.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.merging import Merge, above, greater, merge_columns
from epochal.declarations.expressions import Expression, call
from epochal.errors import PipelineError
from epochal.state.shown import average_type, quotients
from epochal.state.table import Column, Quotient, Shown
from epochal.state.type_names import nested_type, wider_argument
from epochal.state.types import arrow_type, is_variant

TypeOf = Callable[[Expression], str]
"""Returns the Spark type of an expression over the operator's input."""


@dataclass(frozen=True, eq=False)
class Partial:
    """A state column: a Spark aggregate over the slice. ``name`` is unique within its aggregate."""

    name: str
    expression: Expression
    sent: Expression | None = None
    """Expression that Spark computes instead, if the task computes the partial from other values."""

    @property
    def computed(self) -> Expression:
        """Expression that Spark computes over the rows of a slice."""
        return self.expression if self.sent is None else self.sent


class MergeableAggregate(ABC):
    """An aggregate kept as one or more partial columns. Must be serialisable: executors merge.

    State names a partial column after the output column, alone when there is one, else with its own name appended:
    ``mean = F.avg("delay")`` is kept as ``mean_sum`` and ``mean_count``.
    """

    cost: ClassVar[str | None] = None
    """Note of ``epochal check``, for aggregates that cost more than a number per key."""

    named_apart: ClassVar[bool] = False
    """True if a single partial also has its name appended, because it is not the final value."""
    advice: ClassVar[str] = wider_argument(None)
    """Advice for an ``OverflowError`` of :meth:`merge` or :meth:`compute` without a type."""
    always_merged: ClassVar[bool] = False
    """True if :meth:`merge` also receives the first rows of a key, for example to check them."""
    first_is_final: ClassVar[bool] = False
    """True if the first merged partial is the final value; with ``counts``, 0 in place of null."""
    counts: bool = False

    @abstractmethod
    def partials(self) -> tuple[Partial, ...]:
        """Partials over the rows of a slice, per key: any Spark aggregate expressions of flat types."""

    @abstractmethod
    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """Merge, vectorised: row i of both tables belongs to one key; columns are the partials, by name, in order.

        ``old`` is null in every column if the key had no state. Must be associative.
        """

    @abstractmethod
    def final(self, partials: Sequence[Expression]) -> Expression:
        """Final value, from the merged partial columns followed by the :meth:`computed` ones."""

    def computed(self) -> tuple[Column, ...]:
        """Columns that :meth:`compute` adds for :meth:`final`, if Spark cannot compute them. Not stored in state."""
        return ()

    def compute(self, merged: pa.Table) -> pa.Table:
        """The :meth:`computed` columns, vectorised, from the merged partials. ``OverflowError``: leaves its type."""
        raise NotImplementedError(f"{type(self).__name__} declares computed columns: override compute().")

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Quotient | Shown | None:
        """Value that look-ups compute from the state columns (``kept``: by partial), if it differs from them."""
        return None

    def resolved(self, type_of: TypeOf) -> MergeableAggregate:
        """This aggregate with resolved input types. Override if the partials depend on them."""
        return self


@dataclass(frozen=True, eq=False)
class Simple(MergeableAggregate):
    """An aggregate whose merged partial is the final value."""

    first_is_final: ClassVar[bool] = True
    expression: Expression
    kind: Merge
    counts: bool = False
    """True for columns that are never null, as a count's column in Spark."""

    def resolved(self, type_of: TypeOf) -> Simple:
        if self.kind in (Merge.MIN, Merge.MAX):
            argument = self.expression.call.arguments[0]
            _check_ordered(type_of(argument if isinstance(argument, Expression) else call("col", argument)))
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
        type = type_of(self.argument)
        return Average(self.argument, type if type.startswith("interval") else average_type(type))

    @property
    def exact(self) -> bool:
        return self.type.startswith("decimal")

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Quotient | None:
        if not self.exact and self.type != "double":
            return None
        return Quotient(name=name, dividend=kept["sum"], divisor=kept["count"], type=self.type)

    def partials(self) -> tuple[Partial, ...]:
        argument = self.argument.cast("double") if self.type == "double" else self.argument
        return (Partial("sum", call("sum", argument)), Partial("count", call("count", argument)))

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        return pa.table({name: merge_columns(Merge.SUM, old[name], new[name]) for name in ("sum", "count")})

    def final(self, partials: Sequence[Expression]) -> Expression:
        total, count, *average = partials
        if self.exact:
            return average[0]
        return call("when", count > 0, total / (count.cast("double") if self.type == "double" else count))

    def computed(self) -> tuple[Column, ...]:
        return (Column(name="average", type=self.type),) if self.exact else ()

    def compute(self, merged: pa.Table) -> pa.Table:
        """Divide in the task, since Spark's division keeps fewer digits than its average."""
        return pa.table({"average": quotients(merged["sum"], merged["count"], self.type)})


@dataclass(frozen=True, eq=False)
class Extreme(MergeableAggregate):
    """``max_by(value, order)`` and ``min_by``: kept as value and order.

    Of several rows with the extreme order, ``max_by`` takes the largest value and ``min_by`` the smallest, null below
    all, so that the result only depends on the set of rows. Structs are compared field by field, as Spark does; values
    with arrays, maps or variants, which Arrow cannot compare, by a hash.
    """

    first_is_final: ClassVar[bool] = True
    value: Expression
    order: Expression
    largest: bool
    tie: Expression | None = None
    """The hash of a nested value."""
    by_hash: bool = False
    by_fields: bool = False
    """True if the order is a struct, whose fields are compared in sequence, null below all."""

    def resolved(self, type_of: TypeOf) -> Extreme:
        order, type = type_of(self.order), type_of(self.value)
        by_fields = order.startswith("struct") and _has_order(arrow_type(order))
        if not by_fields:
            _check_ordered(order)
        if not type.startswith(_NESTED):
            return replace(self, by_fields=by_fields)
        hashed, by_hash = _hashed(self.value), not _has_order(arrow_type(type))
        return replace(self, tie=hashed, by_hash=by_hash, by_fields=by_fields)

    def partials(self) -> tuple[Partial, ...]:
        """Partials from one Spark aggregate of the extreme row, since Spark also sorts and shuffles what it aggregates.

        It contains the deciding value. A value without an order is aggregated separately. If the value itself decides,
        the hash is computed only for the winning row.
        """
        by, extreme = ("max_by", "max") if self.largest else ("min_by", "min")
        place = call("struct", self.order.alias("order"), self._decides.alias("tie"))
        ordered = call("when", self.order.isNotNull(), place)
        won = call(extreme, ordered)
        value = call(by, self.value, ordered) if self.by_hash else won.getField("tie")
        kept = (Partial("value", value), Partial("order", won.getField("order")))
        if self.tie is None:
            return kept
        tie = won.getField("tie") if self.by_hash else call("when", won.isNotNull(), _hashed(value))
        return (*kept, Partial("tie", tie))

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        tie = "tie" if self.by_hash else "value"
        ahead = self._ahead(old["order"], new["order"])
        behind = self._ahead(new["order"], old["order"])
        breaks = self._breaks(old[tie], new[tie])
        wins = pc.or_kleene(ahead, pc.and_kleene(pc.invert(behind), breaks))
        # Without orders the value decides, too; instances of partial state may have such rows.
        of_none = pc.or_(pc.is_valid(new["order"]), breaks)
        wins = pc.if_else(pc.is_null(old["order"]), of_none, pc.fill_null(wins, False))
        return pa.table({name: pc.if_else(wins, new[name], old[name]) for name in old.column_names})

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        return Shown(name=name, type=type, function="same", columns=(kept["value"],))

    @property
    def _decides(self) -> Expression:
        return self.tie if self.by_hash and self.tie is not None else self.value

    def _ahead(self, old: Any, new: Any) -> Any:
        if self.by_fields:
            return above(new, old) if self.largest else above(old, new)
        return greater(new, old) if self.largest else greater(old, new)

    def _breaks(self, old: Any, new: Any) -> Any:
        """Mask of rows in which the new value wins between equal orders."""
        return above(new, old) if self.largest else above(old, new)

    def final(self, partials: Sequence[Expression]) -> Expression:
        return partials[0]


_NESTED = ("array", "map", "struct", "variant")


def _hashed(value: Expression) -> Expression:
    return call("xxhash64", call("to_json", call("struct", value.alias("value"))))


def _has_order(type: pa.DataType) -> bool:
    """True if Arrow can compare the type, including all fields of a struct."""
    if pa.types.is_struct(type):
        return not is_variant(type) and all(_has_order(field.type) for field in type)
    return not pa.types.is_nested(type)


def _check_ordered(type: str) -> None:
    if nested_type(type) is not None:
        raise PipelineError(
            f"values of {type} have no order to merge by. Order by one flat column, or by several: max_by(value, "
            "struct(one, other)) keeps the value of the largest order; the value may have any type."
        )
