"""Converts Arrow columns to plain Python values, and back, a column at a time.

========================  ==================================================
Spark type                Python
========================  ==================================================
boolean, integers         bool, int
float, double, decimal    float, ``decimal.Decimal``
string, binary            str, bytes
date                      ``datetime.date``
timestamp                 ``datetime.datetime`` in UTC, with its time zone
timestamp_ntz             ``datetime.datetime`` without a time zone
interval of days to       ``datetime.timedelta``
seconds
array                     list
map                       dict; a list of pairs where its keys are not hashable
                          (arrays, maps, structs; in input rows only)
struct                    dict
variant                   ``pyspark.sql.types.VariantVal``
null                      None
========================  ==================================================

In the other direction, a timestamp without a time zone is UTC; an array may also be a tuple or a NumPy array, a map a
list of pairs, a struct any mapping or, by position, a tuple or list.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from numbers import Number
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.column_bytes import elements
from epochal.state.types import is_variant, with_spark_types

_DURATIONS = (timedelta, np.timedelta64, NoneType)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = (int, np.integer, NoneType)
_UNCONVERTIBLE = (pa.ArrowException, TypeError, ValueError, OverflowError)


def python_values(array: pa.Array) -> list[Any]:
    """The values of ``array``, ``None`` where null.

    NumPy converts dates and timestamps about thirty times faster than Arrow, which converts them one by one.
    """
    type = array.type
    if pa.types.is_nested(type):
        return _nested_python(array)
    if not (pa.types.is_timestamp(type) or pa.types.is_date32(type)):
        return array.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_date32(type):
        return array.to_numpy(zero_copy_only=False).astype("datetime64[D]").tolist()  # type: ignore[no-any-return]
    if type.tz is None:
        return array.to_numpy(zero_copy_only=False).astype("datetime64[us]").tolist()  # type: ignore[no-any-return]
    since = array.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).astype("datetime64[us]").view("m8[us]")
    if not array.null_count:
        return (_EPOCH + since.astype(object)).tolist()  # type: ignore[no-any-return]
    return [None if delta is None else _EPOCH + delta for delta in since.tolist()]


def arrow_values(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """The inverse of :func:`python_values`. Raises :class:`Unconvertible`, with the value that does not fit."""
    if pa.types.is_integer(type):
        _refuse_fractions(values)
    if pa.types.is_duration(type):
        _refuse_numbers(values)
    convert = _nested_arrow if pa.types.is_nested(type) else pa.array
    try:
        return convert(values, type)
    except _UNCONVERTIBLE:
        pass
    for position, value in enumerate(values):
        try:
            convert([value], type)
        except _UNCONVERTIBLE as error:
            raise Unconvertible(position, value, with_spark_types(error)) from None
    return convert(values, type)


def _refuse_fractions(values: Sequence[Any]) -> None:
    """Reject numbers that are not integers by type, whatever their value: Arrow would silently cut 1.5 to 1."""
    if all(issubclass(kind, _WHOLE) for kind in set(map(type, values))):
        return
    for position, value in enumerate(values):
        if isinstance(value, Number) and not isinstance(value, _WHOLE):
            raise Unconvertible(position, value, "an integer is required; use int(..) or round(..)")


def _refuse_numbers(values: Sequence[Any]) -> None:
    """Reject numbers in place of durations, which Arrow would read as microseconds."""
    for position, value in enumerate(values):
        if not isinstance(value, _DURATIONS):
            raise Unconvertible(position, value, "a datetime.timedelta is required")


def _nested_python(array: pa.Array) -> list[Any]:
    type = array.type
    if pa.types.is_struct(type):
        columns = map(python_values, array.flatten())
        rows: Iterator[Any]
        if is_variant(type):
            from pyspark.sql.types import VariantVal

            rows = (VariantVal(*parts) for parts in zip(*columns, strict=True))
        else:
            names = [field.name for field in type]
            rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        return _with_nulls(array, rows)
    counts, parts = elements(array)
    if pa.types.is_map(type):
        entries = zip(*map(python_values, parts), strict=True)
        form = list if pa.types.is_nested(type.key_type) else dict
        return _with_nulls(array, (form(islice(entries, count)) for count in counts.tolist()))
    values = iter(python_values(parts[0]))
    return _with_nulls(array, (list(islice(values, count)) for count in counts.tolist()))


def _with_nulls(array: pa.Array, values: Iterator[Any]) -> list[Any]:
    if not array.null_count:
        return list(values)
    valid = array.is_valid().to_numpy(zero_copy_only=False).tolist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _nested_arrow(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    mask = np.fromiter((value is None for value in values), np.bool_, len(values))
    if pa.types.is_struct(type):
        rows = [_fields_of(value, type) for value in values]
        columns = list(zip(*rows, strict=True)) or [()] * type.num_fields
        children = [arrow_values(column, field.type) for column, field in zip(columns, type, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(type), mask=pa.array(mask))
    is_map = pa.types.is_map(type)
    items = [_entries_of(value) if is_map else _elements_of(value) for value in values]
    ends = np.cumsum([0, *map(len, items)]).astype(np.int32)
    offsets = pa.array(ends, mask=np.append(mask, False))
    every = list(chain.from_iterable(items))
    if not is_map:
        return pa.ListArray.from_arrays(offsets, arrow_values(every, type.value_type), type=type)
    keys = arrow_values([key for key, _ in every], type.key_type)
    if keys.null_count:
        raise ValueError("a map has no null key")
    return pa.MapArray.from_arrays(offsets, keys, arrow_values([item for _, item in every], type.item_type), type=type)


def _elements_of(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise TypeError("an array takes a list")
    return value if isinstance(value, (list, tuple)) else list(value)


def _entries_of(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        raise TypeError("a map takes a dict, or a list of pairs")
    if len(dict(value)) < len(value):
        raise ValueError("a map has each key once")
    return value


def _fields_of(value: Any, type: pa.StructType) -> Sequence[Any]:
    names = [field.name for field in type]
    if is_variant(type):
        return _parts_of_variant(value)
    if value is None:
        return (None,) * len(names)
    if isinstance(value, Mapping):
        if value.keys() != set(names):
            raise ValueError(f"a struct takes all of its fields and no others: {', '.join(names)}")
        return [value[name] for name in names]
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        raise TypeError(f"a struct takes a dict, or a tuple, of its fields {', '.join(names)}")
    return value


def _parts_of_variant(value: Any) -> Sequence[Any]:
    from pyspark.sql.types import VariantVal

    if value is None:
        return b"", b""  # neither part is ever null
    if not isinstance(value, VariantVal):
        raise TypeError("a variant takes a pyspark.sql.types.VariantVal: VariantVal.parseJson(json.dumps(..))")
    return bytes(value.value), bytes(value.metadata)


class Unconvertible(ValueError):
    """A Python value that does not fit an Arrow type. Callers add its origin and the fix to the message."""

    def __init__(self, position: int, value: Any, why: str) -> None:
        shown = repr(value)
        self.position = position
        self.shown = f"{shown[:97]}..." if len(shown) > 100 else shown
        self.found = type(value).__name__
        super().__init__(why)


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """One column as a contiguous array."""
    array = rows.column(name)
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)


def run_starts(rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The position of the first row of each key, in rows sorted by ``key``."""
    if rows.num_rows == 0:
        return np.zeros(0, np.int64)
    changed = np.zeros(rows.num_rows - 1, np.bool_)
    for name in key:
        column = column_of(rows, name)
        differs = pc.not_equal(column[1:], column[:-1])
        if column.null_count:  # null equals null
            null = column.is_null()
            differs = pc.fill_null(differs, False)
            differs = pc.or_(differs, pc.xor(null[1:], null[:-1]))
        changed |= differs.to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changed) + 1])


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the collector, which would otherwise scan hundreds of thousands of new tuples repeatedly without effect."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
