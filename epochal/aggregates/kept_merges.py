"""Merge functions stored in a state table's declaration, for look-ups, which have no program.

Only for built-in aggregates; an author's own aggregate merges with the author's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.collected import CollectedList, CollectedSet, DistinctSum, ExactDistinctCount
from epochal.aggregates.mergeable import Average, Extreme, MergeableAggregate, Simple
from epochal.aggregates.moments import Correlation, Covariance, Variance
from epochal.aggregates.plan import Part
from epochal.aggregates.sketches import DistinctCount, Percentile
from epochal.declarations.expressions import Expression, call
from epochal.state.table import ANY, SUM_OR_NULL, ZERO_IS_NONE, MergedColumns

_FUNCTIONS: Final[dict[str, type[MergeableAggregate]]] = {
    "simple": Simple,
    "average": Average,
    "extreme": Extreme,
    "variance": Variance,
    "covariance": Covariance,
    "correlation": Correlation,
    "list": CollectedList,
    "set": CollectedSet,
    "distinct_count": ExactDistinctCount,
    "distinct_sum": DistinctSum,
    "approximate_count": DistinctCount,
    "percentile": Percentile,
}
"""Merge functions by name; manifests store the names."""


def merges_of(parts: Sequence[Part]) -> tuple[MergedColumns, ...] | None:
    """Merge functions of all columns of a table; ``None`` if they need the program."""
    names = {function: name for name, function in _FUNCTIONS.items()}
    if any(type(part.aggregate) not in names for part in parts):
        return None
    return tuple(
        MergedColumns(
            function=names[type(part.aggregate)],
            columns=dict(zip(part.names, part.state_columns, strict=True)),
            options=_options(part.aggregate),
        )
        for part in parts
    )


def merged(columns: Sequence[MergedColumns], old: pa.Table, new: pa.Table) -> pa.Table:
    """Merge row i of both tables. Raises ``OverflowError`` without further detail if a value overflows its type."""
    found: dict[str, Any] = {}
    for each in columns:
        kept, names = list(each.columns.values()), list(each.columns)
        sides = (side.select(kept).rename_columns(names) for side in (old, new))
        result = _merge(each)(*sides).select(names)
        found |= {name: result[own] for own, name in each.columns.items()}
    schema = pa.schema([new.schema.field(name) for name in new.column_names])
    return pa.table([found[name] for name in new.column_names], names=new.column_names).cast(schema)


def are_rows(columns: Sequence[MergedColumns], rows: pa.Table) -> pa.BooleanArray:
    """Mask of existing rows after a merge: rows whose row count is zero do not exist."""
    there = pa.repeat(pa.scalar(True), rows.num_rows)
    for each in columns:
        if each.options.get(ZERO_IS_NONE):
            for name in each.columns.values():
                sums = rows[name].combine_chunks()
                there = pc.and_(there, pc.fill_null(pc.not_equal(sums, pa.scalar(0, sums.type)), fill_value=True))
    return there


def _options(aggregate: MergeableAggregate) -> dict[str, Any]:
    """Options of the merge: all fields that are not expressions over rows."""
    values = {field.name: getattr(aggregate, field.name) for field in fields(aggregate)}  # type: ignore[arg-type]
    plain = {name: value for name, value in values.items() if not isinstance(value, Expression) and value is not None}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _merge(columns: MergedColumns) -> Callable[[pa.Table, pa.Table], pa.Table]:
    own = {ANY: _one, SUM_OR_NULL: _sum_or_null}
    return own.get(columns.function) or _aggregate(columns).merge


def _one(old: pa.Table, new: pa.Table) -> pa.Table:
    return old


def _sum_or_null(old: pa.Table, new: pa.Table) -> pa.Table:
    """Sum of two columns; null if one of them is null or the sum overflows."""
    sums = {}
    for name in old.column_names:
        one, other = (side[name].combine_chunks() for side in (old, new))
        total = pc.add(one, other)
        if pa.types.is_integer(total.type):
            # It has overflowed if both operands have the opposite sign.
            wrapped = pc.bit_wise_and(pc.bit_wise_xor(one, total), pc.bit_wise_xor(other, total))
            total = pc.if_else(pc.less(wrapped, 0), pa.scalar(None, total.type), total)
        sums[name] = total
    return pa.table(sums)


def _aggregate(columns: MergedColumns) -> MergeableAggregate:
    function = _FUNCTIONS[columns.function]
    nothing = call("lit", None)
    names = [field.name for field in fields(function)]  # type: ignore[arg-type]
    expressions = {name: nothing for name in names if name in ("expression", "argument", "value", "order", "x", "y")}
    return function(**expressions, **columns.options)
