"""A subtask's keys, some key groups at a time: so that whatever belongs to a key is in memory together, and not all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.key_codec import KeyCodec
from epochal.tasks.values import column_of

Integers = npt.NDArray[np.int64]


class KeyBlocks:
    """Blocks of key groups, in their order, each of as many as held about ``rows`` rows before.

    Whoever takes a block says what it ``held`` before the next one is taken.
    """

    def __init__(self, groups: Sequence[int], rows: int) -> None:
        self._groups = np.array(groups, np.int32)
        self._rows = rows
        self.held = 0

    def __iter__(self) -> Iterator[npt.NDArray[np.int32]]:
        first, count = 0, 1
        while first < len(self._groups):
            self.held = 0
            yield self._groups[first : first + count]
            first += count
            count = max(1, min(8 * count, count * self._rows // max(1, self.held)))


def of_groups(groups: npt.NDArray[np.int32], block: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which rows are of one of the key groups of a block."""
    within = np.zeros(int(max(groups.max(initial=0), block.max(initial=0))) + 1, np.bool_)
    within[block] = True
    return within[groups]


def key_numbers(keys: pa.Table) -> Integers:
    """Equal numbers for equal keys, from 0, in the order in which they first come."""
    one = column_of(keys, keys.column_names[0]) if keys.num_columns == 1 else KeyCodec(keys.schema).encode_array(keys)
    numbers: Integers = pc.dictionary_encode(one, null_encoding="encode").indices.to_numpy().astype(np.int64)
    return numbers
