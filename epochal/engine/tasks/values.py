"""Arrow columns as plain Python values, and back, a column at a time.

========================  ==================================================
Spark type                Python
========================  ==================================================
boolean, integers         bool, int
float, double, decimal    float, ``decimal.Decimal``
string, binary            str, bytes
date                      ``datetime.date``
timestamp                 ``datetime.datetime`` in UTC, with its time zone
timestamp_ntz             ``datetime.datetime`` without a time zone
array, struct, map        list, dict, list of pairs (only in input rows)
null                      None
========================  ==================================================

On the way back a timestamp without a time zone is taken as UTC.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from numbers import Number
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = (int, np.integer, NoneType)
_UNCONVERTIBLE = (pa.ArrowException, TypeError, ValueError, OverflowError)


def python_values(array: pa.Array) -> list[Any]:
    """The values of ``array``, ``None`` where null.

    Arrow makes dates and timestamps one by one; NumPy is some thirty times faster at them.
    """
    type = array.type
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
    """The inverse of :func:`python_values`. Raises :class:`Unconvertible` that says which value does not fit."""
    if pa.types.is_integer(type):
        _refuse_fractions(values)
    try:
        return pa.array(values, type)
    except _UNCONVERTIBLE:
        pass
    for position, value in enumerate(values):
        try:
            pa.array([value], type)
        except _UNCONVERTIBLE as error:
            raise Unconvertible(position, value, str(error)) from None
    return pa.array(values, type)


def _refuse_fractions(values: Sequence[Any]) -> None:
    """Arrow would cut 1.5 to 1 without a word. Only whole numbers by type, so that it does not depend on the data."""
    if all(issubclass(kind, _WHOLE) for kind in set(map(type, values))):
        return
    for position, value in enumerate(values):
        if isinstance(value, Number) and not isinstance(value, _WHOLE):
            raise Unconvertible(position, value, "an integer is needed; use int(..) or round(..)")


class Unconvertible(ValueError):
    """A Python value that does not fit an Arrow type. Callers say where it came from and what to do."""

    def __init__(self, position: int, value: Any, why: str) -> None:
        shown = repr(value)
        self.position = position
        self.shown = f"{shown[:97]}..." if len(shown) > 100 else shown
        self.found = type(value).__name__
        super().__init__(why)


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """One column in one piece."""
    array = rows.column(name)
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)


def run_starts(rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of rows that are sorted by ``key``, the position of the first row of each key."""
    if rows.num_rows == 0:
        return np.zeros(0, np.int64)
    changed = np.zeros(rows.num_rows - 1, np.bool_)
    for name in key:
        column = column_of(rows, name)
        differs = pc.not_equal(column[1:], column[:-1])
        changed |= differs.to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changed) + 1])


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """While tuples are made by the hundred thousand, the collector would look at them again and again for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
