"""Digests of whole rows, of any columns, for the keys of state: equal rows have equal digests.

A digest has 16 bytes: two different rows have equal digests with a probability of 2**-128. Digests are stored in state,
and are therefore the same on every machine and in every version. They are not cryptographic.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.column_bytes import Columns, binary_rows, data_and_offsets
from epochal.state.row_codec import RowCodec

WIDTH: Final = 16
_CHUNK_ROWS: Final = 1 << 15
_WORD: Final = 8
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_SEEDS: Final = (np.uint64(0x243F6A8885A308D3), np.uint64(0xA4093822299F31D0))
_Words = npt.NDArray[np.uint64]


def row_digests(rows: Columns, schema: pa.Schema) -> pa.BinaryArray:
    """The digest of the columns ``schema`` of each row. Columns are found by name, and may be null and of any state
    type."""
    codec = RowCodec(schema)
    parts = [
        _digests(codec.encode_array(rows.slice(start, _CHUNK_ROWS))) for start in range(0, rows.num_rows, _CHUNK_ROWS)
    ]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def _digests(encoded: pa.BinaryArray) -> pa.BinaryArray:
    data, offsets = data_and_offsets(encoded)
    starts, lengths = offsets[:-1], np.diff(offsets)
    counts = -(-lengths // _WORD)
    row = np.repeat(np.arange(len(starts)), counts)
    ends = np.cumsum(counts)
    place = np.arange(len(row)) - (ends - counts)[row]
    words = _words(data, starts[row] + _WORD * place, lengths[row] - _WORD * place)
    halves = [_half(words, place.astype(np.uint64), ends - counts, ends, lengths, seed) for seed in _SEEDS]
    return binary_rows(np.ascontiguousarray(np.stack(halves, axis=1).astype("<u8")).view(np.uint8))


def _words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> _Words:
    """The eight bytes at each position, little-endian, with zeros after the end of the row, ``left`` bytes further."""
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    anywhere: _Words = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    words = anywhere[starts].astype(np.uint64)
    beyond = np.clip(_WORD - left, 0, _WORD - 1).astype(np.uint64) * np.uint64(8)
    return words & (np.uint64(2**64 - 1) >> beyond)


def _half(
    words: _Words,
    place: _Words,
    first: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seed: np.uint64,
) -> _Words:
    """The mixed sum of the words of each row, each mixed with its position, and the row's length."""
    mixed = _mixed(words ^ _mixed((place + np.uint64(1)) * _GOLDEN + seed))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return _mixed(sums[end] - sums[first] + lengths.astype(np.uint64) * _GOLDEN + seed)


def _mixed(words: _Words) -> _Words:
    """A permutation of 64-bit numbers in which every bit depends on all bits (the finaliser of SplitMix64)."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
