"""``distinct``: each key once, in the epoch in which it first occurs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.column_bytes import Mask
from epochal.state.expiry import microseconds
from epochal.state.table import Column, StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import Integers, SliceKeys, gathered, in_order, numbered_keys
from epochal.tasks.subtask_rows import KEY_GROUP, MARK, SUBTASK
from epochal.tasks.values import column_of

FIRST_AT: Final = Column(name="first_at", type="timestamp")
NEVER: Final = np.iinfo(np.int64).min
"""In place of the time until which rows are duplicates, for keys without a row."""


@dataclass(frozen=True)
class DistinctWork:
    """Output: the keys that are not in the table yet. Adds them to the table."""

    table: StateTable
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys = SliceKeys.of(subtask, self.table, gathered(rows))
        found, _ = keys.stored()
        new = keys.filter(pa.array(~found))
        seen = pa.repeat(pa.scalar(True), new.rows.num_rows)
        subtask.transaction.stage(self.table.id, new.changes("put", [seen]))
        yield from new.rows.cast(subtask.output).to_batches()


@dataclass(frozen=True)
class DropDuplicatesWork:
    """Output: the first row of each key, by event time, if there is one, and then by all columns."""

    table: StateTable
    keys: tuple[str, ...]
    """In the spelling of the input, as ``event_time``."""
    event_time: str | None
    within: int | None
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        if not slice.num_rows:
            return
        codes, of_key = numbered_keys(slice.select(self.keys))
        unique = slice if len(of_key) == len(codes) else slice.take(pa.array(of_key))
        keys = SliceKeys.of(subtask, self.table, unique, self.keys)
        found, values = keys.stored()
        if self.within is None:
            first, changed = self._new(slice, codes, ~found), ~found
            value = pa.repeat(pa.scalar(True), int(changed.sum()))
        else:
            first, last = self._apart(slice, codes, self._until(found, values), self.within)
            changed = last != NEVER
            value = pa.array(last[changed], pa.int64()).cast(self.table.value_schema.field(0).type)
        if changed.any():
            subtask.transaction.stage(self.table.id, keys.filter(pa.array(changed)).changes("put", [value]))
        yield from slice.take(pa.array(first)).select(subtask.output.names).cast(subtask.output).to_batches()

    def _new(self, slice: pa.Table, codes: Integers, new: Mask) -> Integers:
        """The positions of the first rows of the keys in the mask ``new``."""
        candidates = np.flatnonzero(new[codes])
        if len(candidates) == int(new.sum()):
            return candidates
        candidates, chosen = self._sorted(slice, codes, candidates)
        return candidates[np.r_[True, chosen[1:] != chosen[:-1]]]

    def _apart(self, slice: pa.Table, codes: Integers, until: Integers, within: int) -> tuple[Integers, Integers]:
        """The positions of the rows to emit, and for each key the time of the last of them, or ``NEVER``."""
        times = np.asarray(microseconds(column_of(slice, str(self.event_time))), np.int64)
        candidates = np.flatnonzero(times >= until[codes])
        last = np.full(len(until), NEVER)
        came = np.zeros(len(until), np.bool_)
        came[codes[candidates]] = True
        if int(came.sum()) < len(candidates):
            candidates, chosen = self._sorted(slice, codes, candidates)
            candidates = candidates[kept(chosen, times[candidates], until, within)]
        last[codes[candidates]] = times[candidates]  # the last of several rows of a key remains
        return candidates, last

    def _sorted(self, slice: pa.Table, codes: Integers, candidates: Integers) -> tuple[Integers, Integers]:
        """These rows sorted by key and then by their own order, and the numbers of their keys."""
        rows = slice.take(pa.array(candidates)).drop_columns([KEY_GROUP, MARK, SUBTASK])
        by_time = () if self.event_time is None else (self.event_time,)
        ordered = candidates[in_order(rows, codes[candidates], by_time)]
        return ordered, codes[ordered]

    def _until(self, found: Mask, values: pa.Table) -> Integers:
        """For each key, the time until which its rows are duplicates."""
        first_at = microseconds(column_of(values, FIRST_AT.name)).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(found, first_at + (self.within or 0), NEVER)


def kept(codes: Integers, times: Integers, until: Integers, within: int) -> npt.NDArray[np.bool_]:
    """A mask of the rows to emit, of rows sorted by (code, time): for each key, the first row at or after
    ``until[code]``, then each next row that is at least ``within`` later."""
    mask: npt.NDArray[np.bool_] = np.zeros(len(codes), np.bool_)
    if not len(codes):
        return mask
    moments, ranks = np.unique(times, return_inverse=True)
    width = len(moments) + 1
    places = codes * width + ranks
    begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    own = codes[begins]
    current = np.searchsorted(places, own * width + np.searchsorted(moments, until[own]))
    after = np.searchsorted(places, codes * width + np.searchsorted(moments, times + within))
    while len(own):
        there = current < len(codes)
        own, current = own[there], current[there]
        mine = codes[current] == own
        own, current = own[mine], current[mine]
        mask[current] = True
        current = after[current]
    return mask
