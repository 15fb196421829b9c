"""Bloom filters of the keys in a key group of a run, so that a look-up reads only runs that probably have its key.

They are split block Bloom filters, as in Parquet: a key sets one bit in each of the eight words of one block. A filter
has about :data:`BITS_PER_KEY` bits for each key, so that about one of a hundred absent keys is not excluded. A key is
the operator's key, without sub-key and time: all rows of an operator's key have the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.column_bytes import Columns, Mask
from epochal.state.keygroups import Hashes, hash_columns

BITS_PER_KEY = 10
BLOCK_BITS = 256
_BLOCK_SEED, _BITS_SEED = 0x9747B28C, 0x5BD1E995
"""Seeds of the two hashes. Key groups use another one: the hash that selects a key group varies little within it."""
_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)


@dataclass(frozen=True)
class KeyHashes:
    """Two hashes of each key: one selects its block, the other one its bits."""

    block: Hashes
    bits: Hashes

    @classmethod
    def of(cls, keys: Columns, schema: pa.Schema) -> KeyHashes:
        """``keys``: contains the columns of ``schema``, those of the operator's key."""
        block, bits = (hash_columns(keys, schema, seed).view(np.uint32) for seed in (_BLOCK_SEED, _BITS_SEED))
        return cls(block, bits)

    def some(self, chosen: npt.NDArray[Any] | slice) -> KeyHashes:
        return KeyHashes(self.block[chosen], self.bits[chosen])

    @property
    def distinct(self) -> KeyHashes:
        both = np.unique(self.block.astype(np.uint64) << np.uint64(32) | self.bits)
        return KeyHashes((both >> np.uint64(32)).astype(np.uint32), both.astype(np.uint32))

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True)
class KeyFilter:
    """``words``: uint32, eight in each block."""

    words: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, keys: KeyHashes) -> KeyFilter:
        """The filter of these keys, at least one."""
        keys = keys.distinct
        words = np.zeros((-(-len(keys) * BITS_PER_KEY // BLOCK_BITS), len(_SALTS)), np.uint32)
        blocks = _blocks(keys, len(words))
        order = np.argsort(blocks, kind="stable")
        present, firsts = np.unique(blocks[order], return_index=True)
        words[present] = np.bitwise_or.reduceat(_bits(keys)[order], firsts, axis=0)
        return cls(words)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyFilter:
        return cls(np.frombuffer(data, "<u4").reshape(-1, len(_SALTS)))

    def to_bytes(self) -> bytes:
        return self.words.astype("<u4").tobytes()

    def may_contain(self, keys: KeyHashes) -> Mask:
        """Mask of the keys that were probably added; ``False``: certainly not."""
        bits = _bits(keys)
        found: Mask = np.equal(self.words[_blocks(keys, len(self.words))] & bits, bits).all(axis=1)
        return found


def _blocks(keys: KeyHashes, number: int) -> npt.NDArray[np.int64]:
    return (keys.block.astype(np.uint64) * np.uint64(number) >> np.uint64(32)).astype(np.int64)


def _bits(keys: KeyHashes) -> npt.NDArray[np.uint32]:
    """One bit in each of the eight words of a block, by key."""
    return np.uint32(1) << (keys.bits[:, None] * _SALTS >> np.uint32(27))
