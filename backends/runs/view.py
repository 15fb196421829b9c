"""View of several runs as one state table: the newest run decides each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.delta import OpenView
from epochal.backends.runs.hashing import hash_keys
from epochal.backends.runs.run import Run
from epochal.backends.runs.segment import Mask, Positions, Segment
from epochal.contracts.state import Found, KeyGroups, StateRows
from epochal.state.key_order import common_width, taken
from epochal.state.table import StateTable

_MORE = 4
"""Factor by which the number of rows read from a range grows when deleted or replaced rows leave too few."""


class RunsView(OpenView):
    """View of ``runs``, newest first. They are immutable, and stay mapped for the lifetime of the view."""

    def __init__(self, table: StateTable, runs: Sequence[Run], salt: int) -> None:
        self._schema = table.value_schema
        self._runs = tuple(run for run in runs if len(run))
        self._salt = salt

    def lookup(self, groups: KeyGroups, keys: pa.BinaryArray) -> tuple[Found, pa.Table]:
        hashes = hash_keys(keys, self._salt)
        order, width = np.argsort(hashes), common_width(keys)
        hashes, sought = hashes[order], taken(keys, order, width).cast(pa.large_binary())
        left, of_left = np.arange(len(order)), groups[order]
        parts, rows = [], np.full(len(order), -1, np.int64)
        before = 0
        for run in self._runs:
            missing = np.ones(len(left), bool)
            for segment, asked in run.by_segment(of_left):
                found = segment.find(taken(sought, asked, width), hashes[asked])
                here = found >= 0
                asked, found = asked[here], found[here]
                missing[asked] = False
                if segment.deleted is not None:
                    shown = ~segment.deleted[found]
                    asked, found = asked[shown], found[shown]
                if len(found):
                    parts.append(self._values(segment, found))
                    rows[left[asked]] = before + np.arange(len(found))
                    before += len(found)
            rest = np.flatnonzero(missing)
            if not len(rest):
                break
            if len(rest) < len(left):
                left, of_left, hashes = left[rest], of_left[rest], hashes[rest]
                sought = taken(sought, rest, width)
        row_of = np.empty(len(order), np.int64)
        row_of[order] = rows
        there = row_of >= 0
        values = self._together(parts).take(pa.array(row_of, mask=None if there.all() else ~there))
        return there, values

    def ranges(
        self, groups: KeyGroups, low: pa.BinaryArray, high: pa.BinaryArray, limit: int | None = None
    ) -> StateRows:
        low, high = low.cast(pa.large_binary()), high.cast(pa.large_binary())
        runs = [run.in_order for run in self._runs]
        segments = [segment for run in runs for segment in run.segments]
        asked, taken, found = np.arange(len(groups)), limit, list[_Rows]()
        while len(asked):
            which = pa.array(asked)
            rows, cut = _taken(runs, groups[asked], low.take(which), high.take(which), taken)
            rows = rows.shown(len(segments))
            if limit is None or taken is None:
                found.append(rows.of(asked))
                break
            rows = rows.limited(limit)
            enough = ~cut | (np.bincount(rows.owner, minlength=len(asked)) == limit)
            found.append(rows.filter(enough[rows.owner]).of(asked))
            asked, taken = asked[~enough], taken * _MORE
        return self._of(segments, _Rows.joined(found))

    def get(self, group: int, key: bytes) -> Mapping[str, Any] | None:
        (hash,) = hash_keys(pa.array([key], pa.binary()), self._salt)
        for run in self._runs:
            for segment, _ in run.by_segment(np.array([group], np.int32)):
                row = segment.find_one(key, hash)
                if row >= 0:
                    if segment.deleted is not None and segment.deleted[row]:
                        return None
                    return {field.name: segment.values.column(field.name)[row].as_py() for field in self._schema}
        return None

    def close(self) -> None:
        """Do nothing: a segment is unmapped when its last reference ends."""

    def _of(self, segments: Sequence[Segment], rows: _Rows) -> StateRows:
        """Return the keys and values of rows, by owner."""
        by_owner, by_segment = np.argsort(rows.owner, kind="stable"), np.argsort(rows.segment, kind="stable")
        taken = [self._values(segment, rows.rows[rows.segment == number]) for number, segment in enumerate(segments)]
        row_of = np.empty(len(by_segment), np.int64)
        row_of[by_segment] = np.arange(len(by_segment))
        values = self._together(taken).take(pa.array(row_of[by_owner]))
        keys = rows.keys.take(pa.array(by_owner)).cast(pa.binary())
        return StateRows(rows.owner[by_owner], keys, values)

    def _values(self, segment: Segment, rows: Positions) -> pa.RecordBatch:
        # A batch takes much less time for each segment than a table.
        batch = segment.batch
        if batch.schema.names != self._schema.names:
            batch = batch.select(self._schema.names)
        found = batch.take(pa.array(rows))
        return found if found.schema.equals(self._schema) else found.cast(self._schema)

    def _together(self, parts: Sequence[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(parts, self._schema).combine_chunks()


def _taken(
    runs: Sequence[Run], groups: KeyGroups, low: pa.Array, high: pa.Array, limit: int | None
) -> tuple[_Rows, Mask]:
    """Read each range from each run, newest first, at most ``limit`` rows; also return which ranges were cut."""
    parts, cut = [], np.zeros(len(groups), bool)
    numbers = {id(segment): number for number, segment in enumerate(each for run in runs for each in run.segments)}
    for segment, asked in (found for run in runs for found in run.by_segment(groups)):
        which = pa.array(asked)
        first, end = segment.between(groups[asked], low.take(which), high.take(which))
        stop = end if limit is None else np.minimum(end, first + limit)
        counts = stop - first
        place = np.repeat(np.arange(len(asked)), counts)
        rows = np.arange(len(place)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        deleted = np.zeros(len(rows), bool) if segment.deleted is None else segment.deleted[rows]
        is_cut = stop < end
        last = is_cut[place] & (rows == stop[place] - 1)
        number, keys = np.full(len(rows), numbers[id(segment)]), segment.keys.take(pa.array(rows))
        parts.append(_Rows(asked[place], number, rows, keys, deleted, last))
        cut[asked] |= is_cut
    return _Rows.joined(parts), cut


@dataclass(frozen=True)
class _Rows:
    """Rows of ranges. ``owner``: the range; ``segment``, ``rows``: position; ``last``: the segment has further rows in
    the range that were not read."""

    owner: Positions
    segment: Positions
    rows: Positions
    keys: pa.LargeBinaryArray
    deleted: Mask
    last: Mask

    @classmethod
    def joined(cls, parts: Sequence[_Rows]) -> _Rows:
        if len(parts) == 1:
            return parts[0]
        none, no = np.zeros(0, np.int64), np.zeros(0, bool)
        parts = [cls(none, none, none, pa.array([], pa.large_binary()), no, no), *parts]
        return cls(
            np.concatenate([part.owner for part in parts]),
            np.concatenate([part.segment for part in parts]),
            np.concatenate([part.rows for part in parts]),
            pa.concat_arrays([part.keys for part in parts]),
            np.concatenate([part.deleted for part in parts]),
            np.concatenate([part.last for part in parts]),
        )

    def shown(self, segments: int) -> _Rows:
        """Return the newest row of each key, without deleted keys, ordered by owner and key.

        Omits the rows of a range after the last row read from a segment that has more.
        """
        rows = self._sorted() if segments > 1 else self
        if not len(rows.owner):
            return rows
        begins = np.append(True, rows.owner[1:] != rows.owner[:-1])
        is_first = begins.copy()
        is_first[1:] |= np.asarray(pc.not_equal(rows.keys[1:], rows.keys[:-1]), bool)
        ended: Positions = np.cumsum(rows.last) - rows.last
        ended -= np.maximum.accumulate(np.where(begins, ended, 0))
        return rows.filter(is_first & ~rows.deleted & (ended == 0))

    def limited(self, limit: int) -> _Rows:
        """Return the first ``limit`` rows of each range."""
        places = np.arange(len(self.owner))
        begins = np.append(True, self.owner[1:] != self.owner[:-1])[: len(places)]
        return self.filter(places - np.maximum.accumulate(np.where(begins, places, 0)) < limit)

    def of(self, asked: Positions) -> _Rows:
        """Replace each owner by the entry of ``asked`` at its position."""
        return replace(self, owner=asked[self.owner])

    def filter(self, mask: Mask) -> _Rows:
        if mask.all():
            return self
        return self._picked(np.flatnonzero(mask))

    def _sorted(self) -> _Rows:
        columns = pa.table({"owner": self.owner, "key": self.keys, "segment": self.segment})
        return self._picked(
            pc.sort_indices(columns, sort_keys=[(name, "ascending") for name in ("owner", "key", "segment")]).to_numpy()
        )

    def _picked(self, places: Positions) -> _Rows:
        return _Rows(
            self.owner[places],
            self.segment[places],
            self.rows[places],
            self.keys.take(pa.array(places)),
            self.deleted[places],
            self.last[places],
        )
