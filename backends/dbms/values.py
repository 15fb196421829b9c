"""T2: checks rows, without a connection, for values that the column types of the table refuse.

At the commit the database would refuse them after the decision, when the row can no longer be corrected. Only the
database can check constraints and triggers (:mod:`epochal.backends.postgresql_two_phase`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pydantic_core

from epochal.backends import json_lines
from epochal.backends.dbms.column_types import SQLITE_DIGITS, ColumnType
from epochal.backends.dbms.target import Target, TargetColumn
from epochal.backends.dbms.writing import DELETE, OPERATION, ORDER
from epochal.backends.text_columns import bytes_of, check_utf8, described, has_text, is_text, row_at, text_leaves
from epochal.errors import RowRejected
from epochal.state.types import is_variant

_NAMES = {"postgresql": "PostgreSQL", "mysql": "MySQL", "sqlite": "SQLite"}
_DAY = 86_400_000_000
_TIMES = "the years 1 to 9999", -719_162 * _DAY, 2_932_897 * _DAY - 1
_TIMESTAMPS_OF_MYSQL = "1970-01-01 00:00:01 to 2038-01-19 03:14:07", 1_000_000, 2_147_483_647_999_999
"""Microseconds since 1970."""
_MICROSECOND_DIGITS = 6
_UUID = "[0-9a-fA-F]{4}(-?[0-9a-fA-F]{4}){7}"
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_HUGE_EXPONENT = "[0-9][eE][+-]?0*[1-9][0-9]{4}"

Problem = tuple[Any, str]
"""A mask of the rows whose value does not fit, and the reason."""


def check(rows: pa.Table, target: Target, keys: tuple[str, ...], dialect: str) -> None:
    """Check rows against the types of the table's columns. Raises ``RowRejected`` that names row and column."""
    kept = rows
    if OPERATION in rows.column_names:
        kept = rows.filter(pc.not_equal(rows[OPERATION], DELETE))
    for column in target.columns:
        if column.name not in rows.column_names:
            continue
        checked = rows if column.name in keys else kept
        values = _array(checked[column.name])
        if has_text(values.type):
            check_utf8(checked, _NAMES[dialect], keys, (column.name,))
        for wrong, why in _problems(values, column, column.name in keys, dialect):
            _refuse(checked, wrong, keys, f"{column.name!r} {why}")


def _problems(values: pa.Array, column: TargetColumn, key: bool, dialect: str) -> Iterator[Problem]:
    type = column.type
    if values.null_count and (key or not column.nullable):
        yield pc.is_null(values), "takes no null"
    if is_text(values.type):
        yield from _text_problems(values, type, dialect)
    elif pa.types.is_nested(values.type):
        yield from _nested_problems(values, type, dialect)
    elif pa.types.is_binary(values.type) and type.bytes is not None:
        yield pc.greater(pc.binary_length(values), type.bytes), f"is {type.shown}, and the value is longer"
    elif pa.types.is_temporal(values.type):
        yield from _time_problems(values, type)
    else:
        yield from _number_problems(values, type, dialect)


def _text_problems(values: pa.Array, type: ColumnType, dialect: str) -> Iterator[Problem]:
    if dialect == "postgresql" and b"\0" in bytes_of(values):
        yield pc.match_substring(values, "\0"), "holds a zero character, which PostgreSQL cannot store"
    if type.size is not None:
        yield pc.greater(pc.utf8_length(values), type.size), f"is {type.shown}, and the value is longer"
    if type.bytes is not None:
        yield pc.greater(pc.binary_length(values), type.bytes), f"is {type.shown}, and the value is longer"
    if type.labels:
        known = pc.is_in(values, pa.array(type.labels, values.type))
        yield pc.and_(pc.is_valid(values), pc.invert(known)), f"is one of {', '.join(type.labels)}; the value is not"
    if type.family == "uuid":
        form = f"^({_UUID}|\\{{{_UUID}\\}})$"
        yield pc.invert(pc.match_substring_regex(values, form)), "is a UUID, and the value is not"
    if type.family == "json":
        yield _where(values, lambda text: not _is_json(text, strict=type.strict_json)), "is JSON, and the value is not"
        if type.strict_json and dialect == "postgresql":
            yield from _jsonb_problems(values)


def _jsonb_problems(texts: pa.Array) -> Iterator[Problem]:
    if b"\\u0000" in bytes_of(texts):
        yield _where(texts, lambda text: _NUL_ESCAPE.search(text) is not None), _ZERO_IN_JSON
    huge = pc.match_substring_regex(texts, _HUGE_EXPONENT)
    yield huge, "is jsonb, which cannot hold a number with such an exponent"


_ZERO_IN_JSON = "is jsonb, and a text within it holds a zero character (\\u0000), which PostgreSQL cannot store"


def _nested_problems(values: pa.Array, type: ColumnType, dialect: str) -> Iterator[Problem]:
    """Check nested values, written as JSON with a zero character as an escape: only jsonb refuses it."""
    if dialect != "postgresql" or type.family != "json" or not type.strict_json:
        return
    if _has_variant(values.type):
        yield from _jsonb_problems(json_lines.texts(values))
    elif any(b"\0" in bytes_of(leaf) for leaf in text_leaves(values)):
        yield _where(json_lines.texts(values), lambda text: _NUL_ESCAPE.search(text) is not None), _ZERO_IN_JSON


def _time_problems(values: pa.Array, type: ColumnType) -> Iterator[Problem]:
    of_date = pa.types.is_date(values.type)
    if not of_date and not pa.types.is_timestamp(values.type):
        return
    shown, first, last = _TIMESTAMPS_OF_MYSQL if type.narrow else _TIMES
    if of_date:
        numbers, unit = values.cast(pa.int32()), _DAY
    else:
        numbers, unit = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()), 1
    outside = pc.or_(pc.less(numbers, -(-first // unit)), pc.greater(numbers, last // unit))
    yield outside, f"is {type.shown}, which holds {shown}; the value is outside"
    if not of_date and type.digits is not None and type.digits < _MICROSECOND_DIGITS:
        rest = 10 ** (_MICROSECOND_DIGITS - type.digits)
        wrong = pc.not_equal(pc.multiply(pc.divide(numbers, rest), rest), numbers)
        yield wrong, f"is {type.shown}, which would round the value to {type.digits} decimals of a second"


def _number_problems(values: pa.Array, type: ColumnType, dialect: str) -> Iterator[Problem]:
    if pa.types.is_floating(values.type) and dialect != "postgresql":
        if dialect == "mysql":
            yield pc.invert(pc.is_finite(values)), "holds NaN or an infinity, which MySQL cannot store"
        else:
            yield pc.is_nan(values), "holds NaN, which SQLite stores as null"
    if type.unsigned and not pa.types.is_boolean(values.type):
        yield pc.less(values, pa.scalar(0).cast(values.type)), f"is {type.shown}, and the value is negative"
    if type.family == "decimal" and pa.types.is_decimal(values.type) and type.inexact:
        yield (
            _more_digits(values),
            f"is {type.shown}, of which SQLite stores {SQLITE_DIGITS} digits; the value has more",
        )


def _more_digits(values: pa.Array) -> Any:
    """Return the decimals that SQLite would round: neither integers of 64 bits nor within :data:`SQLITE_DIGITS`
    digits."""
    if values.type.precision <= SQLITE_DIGITS:
        return pa.array([], pa.bool_())
    wide = values.cast(pa.decimal256(min(76, values.type.precision + 2), values.type.scale))
    limit = pa.scalar(Decimal(10**SQLITE_DIGITS).scaleb(-values.type.scale)).cast(wide.type)
    many = pc.greater_equal(pc.abs(wide), limit)
    if not pc.any(many, min_count=0).as_py():
        return many
    return _where(values, lambda value: value != int(value) or not -(2**63) <= value < 2**63, many)


def _is_json(text: str, strict: bool) -> bool:
    try:
        pydantic_core.from_json(text, allow_inf_nan=False)
        return True
    except ValueError:  # invalid, or beyond that parser's limits
        pass
    try:
        value = json.loads(text, parse_constant=_not_json, parse_int=str, parse_float=str)
        if strict:
            json.dumps(value, ensure_ascii=False).encode()  # fails for a surrogate without its other half
    except (ValueError, RecursionError):
        return False
    return True


def _not_json(constant: str) -> None:
    raise ValueError(constant)


def _has_variant(type: pa.DataType) -> bool:
    return is_variant(type) or any(_has_variant(type.field(inner).type) for inner in range(type.num_fields))


def _where(values: pa.Array, wrong: Callable[[Any], bool], among: pa.Array | None = None) -> pa.Array:
    """Return a mask computed by a Python function, for checks that Arrow does not provide."""
    chosen = [True] * len(values) if among is None else among.to_pylist()
    pairs = zip(values.to_pylist(), chosen, strict=True)
    return pa.array([bool(look) and value is not None and wrong(value) for value, look in pairs], pa.bool_())


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _refuse(rows: pa.Table, wrong: Any, keys: tuple[str, ...], why: str) -> None:
    if not len(wrong) or not pc.any(wrong, min_count=0).as_py():
        return
    row = row_at(rows, pc.index(pc.fill_null(wrong, False), True).as_py())
    named = {name: row[name] for name in keys if row[name] is not None} or row
    raise RowRejected(
        f"Row {described(named, (OPERATION, ORDER))} does not fit the table: {why}. "
        "Correct or filter it in the pipeline."
    )
