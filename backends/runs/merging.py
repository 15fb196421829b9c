"""Merge segments of several runs into one that holds the newest row of each key. All steps are vectorised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.runs.hashing import Hashes
from epochal.backends.runs.segment import Mask, Positions, Segment, one_chunk
from epochal.state.key_order import common_width, taken


def merged(segments: Sequence[Segment], gone: Sequence[Mask] | None, in_order: bool) -> Segment:
    """Merge ``segments``, newest first.

    ``gone``: the expired rows of each, set when no older run lies below these; deleted keys are then dropped, too.
    ``in_order``: whether the result is ordered by (key group, key).
    """
    if in_order:
        segments = [segment.in_order for segment in segments]
    hashes = np.concatenate([segment.hashes for segment in segments])
    keys = pa.concat_arrays([segment.keys for segment in segments])
    # The ascending parts are merged by a stable sort; of equal hashes the newest comes first.
    by_hash = np.argsort(hashes, kind="stable")
    hashes, at = hashes[by_hash], _rows_by_hash(segments)[by_hash]
    deleted = np.concatenate(
        [np.zeros(len(segment), bool) if segment.deleted is None else segment.deleted for segment in segments]
    )
    kept = np.ones(len(keys), bool)
    kept[_hidden(hashes, at, keys)] = False
    if gone is not None:
        kept &= ~np.concatenate(gone) & ~deleted
    order = _in_order(segments, kept) if in_order else at[kept[at]]
    picked, marks = pa.array(order), deleted[order]
    # Column by column: the rows before the merge are in memory one column at a time.
    names = segments[0].values.column_names
    values = [_concatenated(segments, name).take(picked) for name in names]
    return Segment(
        np.concatenate([segment.groups for segment in segments])[order],
        taken(keys, order, common_width(keys)),
        marks if marks.any() else None,
        pa.table(values, names=names),
        hashes[kept[at]],
        _places(order, at[kept[at]]) if in_order else None,
    )


def _concatenated(segments: Sequence[Segment], name: str) -> pa.Array:
    return pa.concat_arrays([one_chunk(segment.values.column(name)) for segment in segments])


def _rows_by_hash(segments: Sequence[Segment]) -> Positions:
    """Return the row of each hash, segment after segment, as a position in the concatenation of all."""
    firsts = np.cumsum([0, *map(len, segments)])
    parts = (np.arange(len(segment)) if segment.at is None else segment.at.astype(np.int64) for segment in segments)
    return np.concatenate([part + first for part, first in zip(parts, firsts, strict=False)])


def _hidden(hashes: Hashes, at: Positions, keys: pa.LargeBinaryArray) -> Positions:
    """Return the rows whose keys also occur in newer rows."""
    found = [np.zeros(0, np.int64)]
    back = 1
    # Two rows of one hash nearly always have the same key; other keys of that hash may lie between them.
    later = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    width = common_width(keys)
    while len(later):
        mine, before = (taken(keys, at[places], width) for places in (later, later - back))
        same = np.asarray(pc.equal(mine, before), bool)
        found.append(at[later[same]])
        later = later[~same]
        back += 1
        later = later[later >= back]
        later = later[hashes[later] == hashes[later - back]]
    return np.concatenate(found)


def _places(order: Positions, at: Positions) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return the positions in ``order`` of the rows ``at``."""
    place_of = np.empty(int(order.max(initial=-1)) + 1, np.uint32)
    place_of[order] = np.arange(len(order), dtype=np.uint32)
    return place_of[at]


def _in_order(segments: Sequence[Segment], kept: Mask) -> Positions:
    """Merge the kept rows of concatenated segments, each of them in order, into one order."""
    firsts = np.cumsum([0, *map(len, segments)])
    order: Positions = np.flatnonzero(kept[: firsts[1]])
    groups, keys = segments[0].groups[order], segments[0].keys.take(pa.array(order))
    for number, segment in enumerate(segments[1:], 1):
        mine = kept[firsts[number] : firsts[number + 1]]
        places, _ = segment.between(groups, keys, keys)
        before = np.concatenate([[0], np.cumsum(mine)])[places]
        rows = np.empty(len(order) + int(mine.sum()), np.int64)
        at = before + np.arange(len(order))
        rest = np.ones(len(rows), bool)
        rest[at] = False
        rows[at] = order
        rows[rest] = firsts[number] + np.flatnonzero(mine)
        order = rows
        if number < len(segments) - 1:
            together = pa.concat_arrays([keys, segment.keys.filter(pa.array(mine))])
            take = np.empty(len(rows), np.int64)
            take[at], take[rest] = np.arange(len(at)), len(at) + np.arange(int(mine.sum()))
            groups = np.concatenate([groups, segment.groups[mine]])[take]
            keys = together.take(pa.array(take))
    return order
