"""Merging of two columns of partial values.

Row i of ``old`` and of ``new`` belong to the same key. Null means "no value" and the other side wins, as
Spark's aggregates skip nulls; both null stays null. The result has the type of the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.type_names import BeyondType
from epochal.state.types import shown_type

AnyArray: TypeAlias = Any
"""``pyarrow.Array`` or ``ChunkedArray``."""


class Merge(StrEnum):
    """Merge functions of partial columns."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AND = "and"
    OR = "or"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"


def merge_columns(kind: Merge, old: AnyArray, new: AnyArray) -> AnyArray:
    """Merge two columns of one type. Raises ``OverflowError`` when a sum overflows its type, as in Spark (ANSI)."""
    return _MERGES[kind](old, new)


def add_wider(old: AnyArray, new: AnyArray) -> AnyArray:
    """As :func:`merge_columns` by ``SUM``; ``new`` may be a wider decimal than ``old``; the result has the type of
    ``old``."""
    if new.type == old.type:
        return _sum(old, new)
    wide = pa.decimal256(new.type.precision + 1, new.type.scale)
    total = _or_either(pc.add(old.cast(wide), new.cast(wide)), old.cast(wide), new.cast(wide))
    try:
        return total.cast(old.type)
    except pa.ArrowInvalid as error:
        raise BeyondType("the sum", shown_type(old.type)) from error


def greater(left: AnyArray, right: AnyArray) -> AnyArray:
    """``left > right`` as Spark orders: NaN is above every number; null where either is null."""
    if not pa.types.is_floating(left.type):
        return pc.greater(left, right)
    above = pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right)))
    return pc.or_(pc.greater(left, right), above)


def above(left: AnyArray, right: AnyArray) -> AnyArray:
    """Mask: ``left`` comes after ``right`` in Spark's order, null first; structs field by field. Never null."""
    if not pa.types.is_struct(left.type):
        return pc.if_else(pc.is_null(right), pc.is_valid(left), pc.fill_null(greater(left, right), False))
    after, undecided = pc.is_null(pc.is_valid(left)), pc.is_valid(pc.is_valid(left))  # none; all
    for field in range(left.type.num_fields):
        one, other = pc.struct_field(left, [field]), pc.struct_field(right, [field])
        ahead = above(one, other)
        after = pc.or_(after, pc.and_(undecided, ahead))
        undecided = pc.and_(undecided, pc.invert(pc.or_(ahead, above(other, one))))
    return pc.if_else(pc.is_null(right), pc.is_valid(left), pc.and_(pc.is_valid(left), after))


def _or_either(both: AnyArray, old: AnyArray, new: AnyArray) -> AnyArray:
    return pc.coalesce(both, old, new)


def _sum(old: AnyArray, new: AnyArray) -> AnyArray:
    try:
        return _or_either(_added(old, new), old, new)
    except pa.ArrowInvalid as error:
        raise BeyondType("the sum", shown_type(old.type)) from error


def _added(old: AnyArray, new: AnyArray) -> AnyArray:
    if not pa.types.is_decimal(old.type):
        return pc.add_checked(old, new)
    wide = pa.decimal256(old.type.precision + 1, old.type.scale)
    return pc.add(old.cast(wide), new.cast(wide)).cast(old.type)


def _min(old: AnyArray, new: AnyArray) -> AnyArray:
    if pa.types.is_boolean(old.type):
        return _or_either(pc.and_(old, new), old, new)
    return pc.if_else(pc.fill_null(greater(old, new), False), new, pc.coalesce(old, new))


def _max(old: AnyArray, new: AnyArray) -> AnyArray:
    if pa.types.is_boolean(old.type):
        return _or_either(pc.or_(old, new), old, new)
    return pc.if_else(pc.fill_null(greater(new, old), False), new, pc.coalesce(old, new))


def _by(function: Callable[[AnyArray, AnyArray], AnyArray]) -> Callable[[AnyArray, AnyArray], AnyArray]:
    return lambda old, new: _or_either(function(old, new), old, new)


_MERGES: dict[Merge, Callable[[AnyArray, AnyArray], AnyArray]] = {
    Merge.SUM: _sum,
    Merge.MIN: _min,
    Merge.MAX: _max,
    Merge.AND: _by(pc.and_),
    Merge.OR: _by(pc.or_),
    Merge.BIT_AND: _by(pc.bit_wise_and),
    Merge.BIT_OR: _by(pc.bit_wise_or),
    Merge.BIT_XOR: _by(pc.bit_wise_xor),
}
