"""Sorting and selection of encoded keys with few byte comparisons.

Keys nearly always differ in the eight bytes after their common prefix. These bytes are sorted as numbers; only keys
that are equal in them are compared as byte strings.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.column_bytes import data_and_offsets
from epochal.state.keygroups import Groups

Positions = npt.NDArray[np.int64]

WORD: Final = 8
"""Number of bytes that are sorted as one number."""


def order_by_group_and_key(groups: Groups, keys: pa.BinaryArray) -> tuple[Positions, bool]:
    """The order by (key group, key), and true if a key occurs more than once."""
    if len(keys) < 2:
        return np.arange(len(keys)), False
    words, are_whole = _words(keys)
    order, alike = _order_of_words(groups, words)
    if not alike.any():
        return order, False
    return (order, True) if are_whole else _untied(order, alike, keys)


def _order_of_words(groups: Groups, words: npt.NDArray[np.uint64]) -> tuple[Positions, npt.NDArray[np.bool_]]:
    """The order by (key group, word), and a mask of the rows after the first that equal their predecessor."""
    least = words.min()
    bits = int(words.max() - least).bit_length()
    if bits + int(groups.max()).bit_length() <= 8 * WORD:  # one sort is enough
        both = groups.astype(np.uint64) << np.uint64(bits) | (words - least) if bits < 8 * WORD else words
        order = np.argsort(both)
        both = both[order]
        return order, both[1:] == both[:-1]
    order = np.argsort(words)
    order = order[np.argsort(groups[order].astype(np.uint16), kind="stable")]
    words, in_order = words[order], groups[order]
    return order, (words[1:] == words[:-1]) & (in_order[1:] == in_order[:-1])


def last_of_each(groups: Groups, keys: pa.BinaryArray) -> Positions:
    """The last row of each key, in the order by (key group, key)."""
    order, repeated = order_by_group_and_key(groups, keys)
    if not repeated:
        return order
    in_order = taken(keys, order, common_width(keys))
    begins = np.append(True, groups[order][1:] != groups[order][:-1])
    begins[1:] |= np.asarray(pc.not_equal(in_order[1:], in_order[:-1]), bool)
    last: Positions = np.maximum.reduceat(order, np.flatnonzero(begins))
    return last


def places_among(groups: Groups, keys: pa.BinaryArray, first: int) -> tuple[Positions, npt.NDArray[np.bool_]] | None:
    """Insertion positions of the remaining keys among the ``first`` ones, and a mask of the keys that exist there.

    Both parts are sorted by (key group, key), contain each key once, and are not empty. ``None``: eight bytes do not
    distinguish the keys, and the caller must sort them.
    """
    words, are_whole = _words(keys)
    if not are_whole:
        return None
    there, others, of_groups = words[:first], words[first:], groups[first:]
    begins = np.flatnonzero(np.append(True, of_groups[1:] != of_groups[:-1]))
    ends = np.append(begins[1:], len(of_groups))
    lows = np.searchsorted(groups[:first], of_groups[begins], "left")
    highs = np.searchsorted(groups[:first], of_groups[begins], "right")
    places = np.empty(len(others), np.int64)
    for begin, end, low, high in zip(begins, ends, lows, highs, strict=True):
        places[begin:end] = low + np.searchsorted(there[low:high], others[begin:end])
    within = places < np.repeat(highs, ends - begins)
    stand_there = np.zeros(len(others), bool)
    stand_there[within] = there[places[within]] == others[within]
    return places, stand_there


def common_width(keys: pa.BinaryArray) -> int | None:
    """The width of all keys in bytes; ``None`` if widths differ, a key is null, or there are no keys."""
    if not len(keys) or keys.null_count:
        return None
    _, offsets = data_and_offsets(keys)
    width = int(offsets[1] - offsets[0])
    alike = offsets[-1] - offsets[0] == width * len(keys) and (np.diff(offsets) == width).all()
    return width if alike else None


def as_matrix(keys: pa.BinaryArray, width: int) -> npt.NDArray[np.uint8]:
    """Keys of one width as a matrix of shape (rows, width), without copying bytes."""
    data, offsets = data_and_offsets(keys)
    return data[offsets[0] : offsets[-1]].reshape(len(keys), width)


def taken(keys: pa.BinaryArray, rows: Positions, width: int | None) -> pa.BinaryArray:
    """Equivalent to ``keys.take(rows)``. ``width``: the result of :func:`common_width`."""
    if width is None:
        return keys.take(pa.array(rows))
    matrix = as_matrix(keys, width)
    if width == WORD:
        picked = np.ascontiguousarray(matrix).view(np.uint64)[:, 0][rows].view(np.uint8)
    else:
        picked = np.take(matrix, rows, axis=0)
    offsets = np.arange(len(rows) + 1) * width
    if not pa.types.is_large_binary(keys.type):
        offsets = offsets.astype(np.int32)
    return pa.Array.from_buffers(keys.type, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(picked)])


def _words(keys: pa.BinaryArray) -> tuple[npt.NDArray[np.uint64], bool]:
    """The eight bytes of each key after the common prefix, as a number; and true if they are the rest of every key."""
    width = common_width(keys)
    if width is not None:
        matrix = as_matrix(keys, width)
        begin = next((place for place in range(width) if (matrix[:, place] != matrix[0, place]).any()), 0)
        part = matrix[:, begin : begin + WORD]
        whole = np.zeros((len(keys), WORD), np.uint8)
        whole[:, : part.shape[1]] = part
        return whole.view(">u8")[:, 0].astype(np.uint64), begin + WORD >= width
    data, offsets = data_and_offsets(keys)
    least_and_greatest = pc.min_max(keys).as_py()
    least, greatest = least_and_greatest["min"], least_and_greatest["max"]
    unlike = (place for place, (one, other) in enumerate(zip(least, greatest, strict=False)) if one != other)
    begin = next(unlike, min(len(least), len(greatest)))
    places = offsets[:-1, None] + np.arange(begin, begin + WORD)
    beyond = places >= offsets[1:, None]
    places[beyond] = 0
    whole = data[places]
    whole[beyond] = 0  # shorter keys sort first; ties with zero bytes are resolved by bytes
    return whole.view(">u8")[:, 0].astype(np.uint64), False


def _untied(order: Positions, alike: npt.NDArray[np.bool_], keys: pa.BinaryArray) -> tuple[Positions, bool]:
    """Sort rows that are ``alike`` with their predecessor by their bytes; and true if a key occurs more than once."""
    tied = np.zeros(len(order), bool)
    tied[1:] = alike
    tied[:-1] |= alike
    places = np.flatnonzero(tied)
    begins = np.ones(len(order), bool)
    begins[1:] = ~alike
    ties = pa.table({"tie": np.cumsum(begins)[places], "key": keys.take(pa.array(order[places]))})
    within = pc.sort_indices(ties, sort_keys=[("tie", "ascending"), ("key", "ascending")])
    in_order = ties.column("key").combine_chunks().take(within)
    order[places] = order[places][within.to_numpy()]
    return order, bool(pc.any(pc.equal(in_order[1:], in_order[:-1])).as_py())
