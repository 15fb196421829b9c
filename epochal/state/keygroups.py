"""Key groups: assignment of keys to key groups and of key groups to subtasks (thesis 4.2.1).

``key_group = pmod(hash(key columns), max_parallelism)`` with Spark's own hash; ``subtask = key_group % parallelism``.
If the parallelism divides the maximum, Spark's own hash partitioning already places every key group on its subtask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.column_bytes import (
    Columns,
    Values,
    column,
    data_and_offsets,
    fixed_values,
    is_variable,
    null_mask,
    variable_binary,
)
from epochal.state.type_names import quoted
from epochal.state.types import integer_of, unscaled

Groups = npt.NDArray[np.int32]


def key_group_expression(keys: Sequence[str], max_parallelism: int) -> str:
    """The key group as Spark SQL (int, never null), over a DataFrame with these key columns."""
    return f"pmod(hash({', '.join(map(quoted, keys))}), {max_parallelism})"


def key_group(key: Sequence[Any], schema: pa.Schema, max_parallelism: int) -> int:
    """The key group of one key: Python values in the order of the operator's key columns (without sub-key)."""
    return hash_key(key, schema) % max_parallelism


def key_groups(keys: Columns, schema: pa.Schema, max_parallelism: int) -> Groups:
    """The key group of each row; the schema contains the operator's key columns (without sub-key)."""
    return np.mod(hash_columns(keys, schema), np.int32(max_parallelism))


@overload
def subtask_of(key_group: int, parallelism: int) -> int: ...
@overload
def subtask_of(key_group: Groups, parallelism: int) -> Groups: ...
def subtask_of(key_group: Any, parallelism: int) -> Any:
    """The subtask that owns a key group. Every key group has an owner; group counts differ by at most one."""
    return key_group % parallelism


def groups_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups of a subtask, ascending."""
    return range(subtask, max_parallelism, parallelism)


SEED = 42
_WORD = 0xFFFFFFFF
_LONG_DIGITS = 18
"""Spark hashes a decimal of at most this precision as a long, and any other decimal as the bytes of its unscaled value.
"""

Hashes = npt.NDArray[np.uint32]


def hash_key(key: Sequence[Any], schema: pa.Schema) -> int:
    """The hash of one key from Python values in column order: a signed 32-bit integer."""
    result = SEED
    for value, field in zip(key, schema, strict=True):
        if value is not None:
            result = _hash_value(value, field.type, result)
    return result - (1 << 32) if result >> 31 else result


def hash_columns(columns: Columns, schema: pa.Schema, seed: int = SEED) -> npt.NDArray[np.int32]:
    """The hash of each row over the schema's columns, which are matched by name."""
    result = np.full(columns.num_rows, seed, np.uint32)
    for field in schema:
        array = column(columns, field)
        hashed = _hash_array(array, result)
        mask = null_mask(array)
        result = hashed if mask is None else np.where(mask, result, hashed)
    return result.view(np.int32)


def _hash_value(value: Any, type: pa.DataType, seed: int) -> int:
    if pa.types.is_string(type):
        return _hash_bytes(value.encode(), seed)
    if pa.types.is_binary(type):
        return _hash_bytes(value, seed)
    if pa.types.is_decimal128(type):
        integer = unscaled(value, type.scale)
        if type.precision > _LONG_DIGITS:
            return _hash_bytes(_two_complement(integer), seed)
        return _finish(_mix(_mix(seed, integer & _WORD), integer >> 32 & _WORD), 8)
    integer = integer_of(type)(value)
    if pa.types.is_int64(type) or pa.types.is_timestamp(type):
        return _finish(_mix(_mix(seed, integer & _WORD), integer >> 32 & _WORD), 8)
    return _finish(_mix(seed, integer & _WORD), 4)


def _two_complement(integer: int) -> bytes:
    """Minimal big-endian two's complement of the value (as Java's ``BigInteger.toByteArray``)."""
    magnitude = integer if integer >= 0 else ~integer
    return integer.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _hash_bytes(data: bytes, seed: int) -> int:
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        seed = _mix(seed, int.from_bytes(data[position : position + 4], "little"))
    for byte in data[whole:]:
        seed = _mix(seed, byte - 256 & _WORD if byte > 127 else byte)
    return _finish(seed, len(data))


def _mix(seed: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _WORD
    word = (word << 15 | word >> 17) * 0x1B873593 & _WORD
    seed ^= word
    return (seed << 13 | seed >> 19 & 0x1FFF) * 5 + 0xE6546B64 & _WORD


def _finish(value: int, length: int) -> int:
    value ^= length
    value = (value ^ value >> 16) * 0x85EBCA6B & _WORD
    value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD
    return value ^ value >> 16


def _hash_array(array: pa.Array, seeds: Hashes) -> Hashes:
    type = array.type
    if is_variable(type):
        return _hash_variable(variable_binary(array), seeds)
    values = fixed_values(array)
    if pa.types.is_decimal128(type):
        if type.precision > _LONG_DIGITS:
            integers = (int.from_bytes(value, "little", signed=True) for value in values.tolist())
            return _hash_variable(pa.array([_two_complement(integer) for integer in integers], pa.binary()), seeds)
        return _hash_longs(np.ascontiguousarray(values).view("<i8")[::2], seeds)
    if values.dtype.itemsize == 8:
        return _hash_longs(values, seeds)
    return _finish_all(_mix_all(seeds, values.astype(np.int32).view(np.uint32)), np.uint32(4))


def _hash_longs(values: Values, seeds: Hashes) -> Hashes:
    words = np.ascontiguousarray(values).view(np.uint32).reshape(-1, 2)
    return _finish_all(_mix_all(_mix_all(seeds, words[:, 0]), words[:, 1]), np.uint32(8))


def _hash_variable(array: pa.BinaryArray, seeds: Hashes) -> Hashes:
    data, offsets = data_and_offsets(array)
    starts, lengths = offsets[:-1], np.diff(offsets)
    result = seeds.copy()
    padded = np.concatenate([data, np.zeros(4, np.uint8)])

    words = lengths // 4
    for index in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > index)
        result[rows] = _mix_all(result[rows], _little_endian(padded, starts[rows] + 4 * index))
    for index in range(3):  # as in Spark: each remaining byte is hashed as a signed word
        rows = np.flatnonzero(lengths % 4 > index)
        rest = padded[starts[rows] + 4 * words[rows] + index]
        result[rows] = _mix_all(result[rows], rest.view(np.int8).astype(np.int32).view(np.uint32))
    return _finish_all(result, lengths.astype(np.uint32))


def _little_endian(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> Hashes:
    word = data[starts].astype(np.uint32)
    for byte in (1, 2, 3):
        word |= data[starts + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _mix_all(seeds: Hashes, words: Hashes) -> Hashes:
    words = words * np.uint32(0xCC9E2D51)
    words = (words << np.uint32(15) | words >> np.uint32(17)) * np.uint32(0x1B873593)
    seeds = seeds ^ words
    return (seeds << np.uint32(13) | seeds >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish_all(values: Hashes, lengths: Any) -> Hashes:
    values = values ^ lengths
    values = (values ^ values >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    values = (values ^ values >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return values ^ values >> np.uint32(16)
