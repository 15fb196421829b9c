"""Evaluation of standing queries' expressions over Arrow with Spark's semantics, once for each chunk of rows.

An expression over a single text column is evaluated on the distinct values of the column. NULL, NaN and -0.0 have
Spark's semantics: NaN is equal to itself and greater than all other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.standing_queries.expression import Expression
from epochal.standing_queries.types import FLOATS, GREATEST_PRECISION, is_integer
from epochal.state import types
from epochal.state.type_names import decimal_of

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def arrow_type(type: str) -> pa.DataType:
    """The Arrow type of a type of the language; decimals have the maximum precision."""
    decimal = decimal_of(type)
    return types.arrow_type(type) if decimal is None else pa.decimal128(38, decimal[1])


def remembered(aggregate: str) -> str:
    """The name of the column with the previous values of an aggregate. No column of a query has such a name."""
    return f"\0{aggregate}"


class Rows:
    """A chunk of rows with cached results of expressions. ``rows``: one contiguous batch."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._values: dict[str, pa.Array] = {}
        self._masks: dict[str, Mask] = {}
        self._distinct: dict[str, tuple[npt.NDArray[np.int64], Rows]] = {}

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def column(self, name: str) -> pa.Array:
        return self._rows.column(name)

    def mask(self, condition: Expression) -> Mask:
        """A mask of the rows for which a condition is true, neither false nor null."""
        found = self._masks.get(condition.key)
        if found is None:
            text = self._text_column(condition)
            if text is None:
                found = np.asarray(pc.fill_null(self.value(condition), False))
            else:
                codes, distinct = self._spread(text)
                found = distinct.mask(condition)[codes]
            self._masks[condition.key] = found
        return found

    def value(self, expression: Expression) -> pa.Array:
        """The value of an expression in each row."""
        found = self._values.get(expression.key)
        if found is None:
            text = self._text_column(expression) if expression.operation != "column" else None
            if text is None:
                found = self._evaluated(expression)
            else:
                codes, distinct = self._spread(text)
                found = distinct.value(expression).take(pa.array(codes))
            self._values[expression.key] = found
        return found

    def _text_column(self, expression: Expression) -> str | None:
        """The only column of an expression, if it is a text column to evaluate by distinct values."""
        if self._is_distinct or len(expression.columns) != 1:
            return None
        (name,) = expression.columns
        return name if pa.types.is_string(self._rows.schema.field(name).type) else None

    @cached_property
    def _is_distinct(self) -> bool:
        return bool(self._rows.schema.metadata == {b"distinct": b"1"})

    def _spread(self, name: str) -> tuple[npt.NDArray[np.int64], Rows]:
        found = self._distinct.get(name)
        if found is None:
            encoded = self._rows.column(name).dictionary_encode()
            values = pa.concat_arrays([encoded.dictionary, pa.nulls(1, encoded.dictionary.type)])
            codes = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
            schema = pa.schema([pa.field(name, values.type)], metadata={"distinct": "1"})
            found = self._distinct[name] = codes, Rows(pa.RecordBatch.from_arrays([values], schema=schema))
        return found

    def _evaluated(self, expression: Expression) -> pa.Array:
        if expression.operation == "column":
            return self._column(expression, expression.value)
        if expression.operation == "remember":
            return self._column(expression, remembered(expression.value))
        if expression.operation == "literal":
            return pa.repeat(_scalar(expression), len(self))
        arguments = [self.value(argument) for argument in expression.arguments]
        return _EVALUATED[expression.operation](expression, arguments)

    def _column(self, expression: Expression, name: str) -> pa.Array:
        values = self._rows.column(name)
        needed = arrow_type(expression.type)
        if pa.types.is_timestamp(needed) and values.type.tz != "UTC":
            return values.cast(pa.timestamp("us", values.type.tz)).cast(needed)
        return values if values.type == needed else values.cast(needed)


def _scalar(expression: Expression) -> pa.Scalar:
    value, type = expression.value, arrow_type(expression.type) if expression.type != "void" else pa.null()
    if value is None:
        return pa.scalar(None, type)
    if expression.type == "timestamp":
        return pa.scalar(value, pa.int64()).cast(type)
    if expression.type == "date":
        return pa.scalar(value, pa.int32()).cast(type)
    return pa.scalar(Decimal(value) if decimal_of(expression.type) is not None else value, type)


def _and(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    found, *others = arguments
    for other in others:
        found = pc.and_kleene(found, other)
    return found


def _or(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    found, *others = arguments
    for other in others:
        found = pc.or_kleene(found, other)
    return found


def _equal(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    one, other = arguments
    found = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        found = pc.or_(found, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return found


def _equal_null_safe(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    one, other = arguments
    both = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.or_(both, pc.fill_null(_equal(expression, arguments), False))


def _less(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    one, other = arguments
    found = pc.less(one, other)
    if pa.types.is_floating(one.type):
        found = pc.or_(found, pc.and_(pc.is_nan(other), pc.invert(pc.is_nan(one))))
    return found


def _less_or_equal(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    one, other = arguments
    found = pc.less_equal(one, other)
    return pc.or_(found, pc.is_nan(other)) if pa.types.is_floating(one.type) else found


def _in(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    (values,) = arguments
    type = expression.arguments[0].type
    listed = [_scalar(Expression("literal", type, value=value)) for value in expression.value]
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 is 0.0
    found = pc.is_in(values, value_set=pa.array([each.as_py() for each in listed], values.type))
    return pc.if_else(pc.is_null(values), pa.scalar(None, pa.bool_()), found)


def _choice(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    condition, then, other = arguments
    return pc.if_else(pc.fill_null(condition, False), then, other)


def _cast(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    (values,) = arguments
    was, type = expression.arguments[0].type, expression.type
    if (was, type) == ("timestamp", "date"):
        days = np.floor_divide(_integers(values), 86_400_000_000).astype(np.int32)
        return _with_nulls(pa.array(days).view(pa.date32()), values)
    if (was, type) == ("date", "timestamp"):
        return pc.multiply(values.cast(pa.int32()).cast(pa.int64()), 86_400_000_000).cast(types.arrow_type("timestamp"))
    decimal = decimal_of(was)
    if decimal is not None and type in FLOATS:
        is_wide = decimal[0] > GREATEST_PRECISION
        return values.cast(pa.string()).cast(pa.float64()) if is_wide else _doubles(values, decimal[1])
    return values.cast(arrow_type(type), safe=False) if type in FLOATS else values.cast(arrow_type(type))


def _doubles(values: pa.Array, scale: int) -> pa.Array:
    """The nearest doubles of decimals, which Arrow's cast does not always return. A quotient of two exact doubles is
    rounded once."""
    words = whole_numbers(values)
    if scale > 22 or (len(words) and int(np.abs(words).max()) >= 2**53):
        return values.cast(pa.string()).cast(pa.float64())
    return _with_nulls(pa.array(words / 10.0**scale), values)


def _float(operation: Callable[..., Any]) -> Callable[[Expression, list[pa.Array]], pa.Array]:
    def evaluate(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
        return operation(*arguments)

    return evaluate


def _tried(operation: str) -> Callable[[Expression, list[pa.Array]], pa.Array]:
    """An operation that is null for integers whose result exceeds its type; floats never exceed theirs."""
    plain: Callable[..., Any] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}[operation]

    def evaluate(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
        if not is_integer(expression.type):
            return getattr(pc, operation)(*arguments)
        both = pc.and_(pc.is_valid(arguments[0]), pc.is_valid(arguments[1]))
        one, other = (_integers(argument) for argument in arguments)
        with np.errstate(all="ignore"):
            near = plain(one.astype(np.float64), other.astype(np.float64))
            found = plain(one, other)
        least, greatest = _bounds(expression.type)
        fits = (found >= least) & (found <= greatest)
        # A result beyond 64 bits has wrapped, and is far from that of doubles.
        fits &= np.abs(near - found.astype(np.float64)) <= 2.0**62
        found = np.where(fits, found, 0)
        valid = pc.and_(both, pa.array(fits))
        return pc.if_else(valid, pa.array(found).cast(arrow_type(expression.type)), pa.scalar(None))

    return evaluate


def _try_divide(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    one, other = arguments
    zero = pc.fill_null(pc.equal(other, 0.0), True)
    return pc.divide(one, pc.if_else(zero, pa.scalar(None, pa.float64()), other))


def _remainder(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    one, other = arguments
    divisor = _integers(other)
    found = np.fmod(_integers(one), np.where(divisor == 0, 1, divisor))
    return _with_nulls(pa.array(found).cast(arrow_type(expression.type)), one)


def _part(function: Callable[..., Any], plus: int = 0) -> Callable[[Expression, list[pa.Array]], pa.Array]:
    def evaluate(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
        found = function(arguments[0]).cast(pa.int32())
        return pc.add(found, plus) if plus else found

    return evaluate


def _day_of_week(expression: Expression, arguments: list[pa.Array]) -> pa.Array:
    """1 is Sunday."""
    return pc.day_of_week(arguments[0], count_from_zero=False, week_start=7).cast(pa.int32())


def whole_numbers(values: pa.Array) -> Integers:
    """Booleans, integers, times, and the unscaled values of decimals, as int64; null as 0."""
    type = values.type
    if pa.types.is_decimal(type):
        values = values.fill_null(Decimal(0))
        words = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset :]
        return np.ascontiguousarray(words[: 2 * len(values) : 2])
    if pa.types.is_date32(type):
        values = values.cast(pa.int32())
    found: Integers = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _integers(values: pa.Array) -> Integers:
    """Integers and times as int64; null as 0."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    found: npt.NDArray[np.int64] = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _bounds(type: str) -> tuple[int, int]:
    limits = np.iinfo(arrow_type(type).to_pandas_dtype())
    return int(limits.min), int(limits.max)


def _with_nulls(found: pa.Array, of: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(of), found, pa.scalar(None, found.type)) if of.null_count else found


_EVALUATED: Final[dict[str, Callable[[Expression, list[pa.Array]], pa.Array]]] = {
    "and": _and,
    "or": _or,
    "not": lambda expression, arguments: pc.invert(arguments[0]),
    "eq": _equal,
    "eq_null_safe": _equal_null_safe,
    "lt": _less,
    "le": _less_or_equal,
    "is_null": lambda expression, arguments: pc.is_null(arguments[0]),
    "in": _in,
    "like": lambda expression, arguments: pc.match_like(arguments[0], expression.value),
    "starts_with": lambda expression, arguments: pc.starts_with(arguments[0], expression.value),
    "ends_with": lambda expression, arguments: pc.ends_with(arguments[0], expression.value),
    "contains": lambda expression, arguments: pc.match_substring(arguments[0], expression.value),
    "length": lambda expression, arguments: pc.utf8_length(arguments[0]),
    "if": _choice,
    "coalesce": lambda expression, arguments: pc.coalesce(*arguments),
    "cast": _cast,
    "negative": _float(pc.negate),
    "add": _float(pc.add),
    "subtract": _float(pc.subtract),
    "multiply": _float(pc.multiply),
    "divide": _float(pc.divide),
    "remainder": _remainder,
    "try_add": _tried("add"),
    "try_subtract": _tried("subtract"),
    "try_multiply": _tried("multiply"),
    "try_divide": _try_divide,
    "year": _part(pc.year),
    "month": _part(pc.month),
    "day": _part(pc.day),
    "hour": _part(pc.hour),
    "minute": _part(pc.minute),
    "day_of_week": _day_of_week,
}
