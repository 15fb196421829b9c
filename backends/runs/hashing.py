"""64-bit hashes of encoded keys for look-ups, computed by column and not key by key.

Equal keys have equal hashes; equal hashes do not prove equal keys. The salt is secret to a machine, so that a client
cannot choose keys that all have the same hash.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.column_bytes import data_and_offsets

Hashes = npt.NDArray[np.uint64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MOST_WORDS = 32
"""Words of 8 bytes. Longer keys are hashed one by one: a pass per word for a few long keys would cost more."""


def hash_keys(keys: pa.BinaryArray, salt: int) -> Hashes:
    """Return the hash of each key. ``salt``: 64 bits."""
    data, offsets = data_and_offsets(keys)
    lengths = np.diff(offsets)
    if not len(lengths):
        return np.zeros(0, np.uint64)
    result = lengths.astype(np.uint64) * _FIRST ^ np.uint64(salt)
    width = int(lengths[0])
    if width <= 8 * _MOST_WORDS and (lengths == width).all():
        matrix = data[offsets[0] : offsets[-1]].reshape(len(lengths), width)
        for begin in range(0, width, 8):
            _mix(result, _words(matrix[:, begin : begin + 8]))
        return _finished(result)
    words = -(-lengths // 8)
    short = words <= _MOST_WORDS
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    for index in range(int(words[short].max(initial=0))):
        rows = np.flatnonzero(short & (words > index))
        begins = offsets[:-1][rows] + 8 * index
        word = np.ascontiguousarray(padded[begins[:, None] + np.arange(8)]).view("<u8")[:, 0]
        beyond = np.clip(8 * (index + 1) - lengths[rows], 0, 7).astype(np.uint64) * np.uint64(8)
        mixed = result[rows]
        _mix(mixed, word << beyond)  # exclude the bytes after the key
        result[rows] = mixed
    result = _finished(result)
    for row in np.flatnonzero(~short).tolist():
        result[row] = _hash_long(data[offsets[row] : offsets[row + 1]].tobytes(), salt)
    return result


def _words(part: npt.NDArray[np.uint8]) -> Hashes:
    if part.shape[1] == 8:
        return np.ascontiguousarray(part).view("<u8")[:, 0]
    whole = np.zeros((len(part), 8), np.uint8)
    whole[:, 8 - part.shape[1] :] = part
    return whole.view("<u8")[:, 0]


def _mix(hashes: Hashes, words: Hashes) -> None:
    """Change ``hashes`` in place: a new array for each operation takes longer than the operation."""
    hashes ^= words
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint64(32)


def _finished(hashes: Hashes) -> Hashes:
    hashes ^= hashes >> np.uint64(30)
    hashes *= _FIRST
    hashes ^= hashes >> np.uint64(27)
    hashes *= _SECOND
    hashes ^= hashes >> np.uint64(31)
    return hashes


def _hash_long(key: bytes, salt: int) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, key=salt.to_bytes(8, "big")).digest(), "big")
