"""T2 of the joins of rows with versions.

Temporal join: each row with the version of its key that was valid at the row's event time. A row waits until the
watermark has passed its time, because no older version can follow then. Versions are kept back to the newest one ahead
of the watermark, which later rows may need. At the watermark itself another version may still arrive, which must
replace the stored one, also if that is a deletion.

Latest join: each row with the newest version at the time of processing. The versions of an epoch are applied before its
rows, so the version of a row depends on its epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.joins.interval_matching import Integers, Runs, TimesByCode, moved
from epochal.operators.joins.work import COUNT, ROW, TIME, KeyedRows, NewRows, Side, StoredRows, first_of_each
from epochal.state.access import TableAccess
from epochal.state.column_bytes import Mask, column, packed
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import Groups, groups_of
from epochal.state.table import StateTable
from epochal.state.watermarks import BEGINNING, END, behind
from epochal.tasks.operator import Subtask
from epochal.tasks.row_digests import row_digests
from epochal.tasks.slices import delta_rows, gathered
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of
from epochal.tasks.windows import times_of, timestamps

DELETED: Final = "_deleted"
OUTPUT_ROWS: Final = 1 << 16
_CODE, _KNOWN = "_code", "_known"


@dataclass(frozen=True)
class TemporalJoinWork:
    """The work of a temporal join.

    ``rows`` wait in a table by time. ``versions``: their table has one row for a key and time; of several versions the
    one with the greatest digest, in any order of arrival. ``passing``: the versions at or after the watermark, by time.
    ``outer``: emit rows without a version, too. ``deleted``: versions have the column :data:`DELETED`.
    """

    rows: Side
    versions: Side
    passing: StateTable
    outer: bool
    deleted: bool
    output_rows: int = OUTPUT_ROWS
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        yield from _Epoch(self, subtask, slice).output()


@dataclass(frozen=True, eq=False)
class _Versions:
    """Versions by (code, time), at most one of each. ``rows``: the stored columns."""

    codes: Integers
    times: Integers
    rows: pa.Table

    def at(self, codes: Integers, times: Integers, code_count: int) -> tuple[Mask, Integers]:
        """A mask of the times with a version at or before them, and the positions of the newest versions."""
        by_time = TimesByCode(self.codes, self.times, code_count)
        runs = by_time.near(codes, times, BEGINNING, 0)
        found = runs.counts > 0
        places = np.where(found, runs.first + runs.counts - 1, 0)
        return found, by_time.order[places] if len(by_time) else places

    def deleted(self) -> Mask:
        if DELETED not in self.rows.column_names:
            return np.zeros(len(self.codes), np.bool_)
        mask: Mask = column_of(self.rows, DELETED).fill_null(False).to_numpy(zero_copy_only=False)
        return mask


class _Keys:
    """Distinct keys: ``encoded``, their columns, their key groups."""

    def __init__(self, rows: pa.Table, groups: Groups, codec: KeyCodec) -> None:
        found = codec.encode_array(rows).dictionary_encode()
        self.encoded: pa.BinaryArray = found.dictionary
        self.codes: Integers = found.indices.to_numpy().astype(np.int64)
        first = first_of_each(self.codes, len(self.encoded))
        self.columns: pa.Table = rows.select(codec.schema.names).take(pa.array(first))
        self.groups: Groups = groups[first]

    def __len__(self) -> int:
        return len(self.encoded)


class _Epoch:
    """One run of the work."""

    def __init__(self, work: TemporalJoinWork, subtask: Subtask, slice: pa.Table) -> None:
        self._work = work
        self._subtask = subtask
        self._fire = subtask.watermarks.fire
        self._passed_until = behind(self._fire, 1)
        """The last time for which no version can follow."""
        self._new, self._new_versions = NewRows.of(slice, (work.rows, work.versions))
        self._owners = KeyCodec(work.versions.table.owner_schema)
        self._full = KeyCodec(work.versions.table.key_schema)
        self._view = subtask.transaction.view(work.versions.table.id)
        self._waiting = self._access(work.rows.table)

    def output(self) -> Iterator[pa.RecordBatch]:
        new, fire = self._new, self._fire
        stored = StoredRows(self._work.rows, self._subtask, self._work.output_rows)
        stored.prepare(new, fire)
        if self._work.outer:
            yield from self._output(new.keyless, np.ones(new.keyless.num_rows, np.int64), None)
        due = np.flatnonzero(~self._work.rows.stays(new.times, fire))
        for start in range(0, len(due), self._work.output_rows):
            rows = new.rows.take(pa.array(due[start : start + self._work.output_rows]))
            yield from self._joined(rows, np.ones(rows.num_rows, np.int64))
        for rows in self._waiting.due(self._groups, BEGINNING, fire, self._work.output_rows):
            yield from self._joined(rows, column_of(rows, COUNT).to_numpy())
        stored.put(new, fire, only_unmatched=False)
        self._keep_versions()
        self._add_due_time()

    def _joined(self, rows: pa.Table, counts: Integers) -> Iterator[pa.RecordBatch]:
        """These rows, each repeated by its count, with the versions that were valid at their times."""
        times = times_of(column_of(rows, self._work.rows.time))
        keys = _Keys(rows, column_of(rows, KEY_GROUP).to_numpy(), self._owners)
        latest = np.full(len(keys), BEGINNING, np.int64)
        np.maximum.at(latest, keys.codes, times)
        versions = self._versions(keys, latest)
        found, places = versions.at(keys.codes, times, len(keys))
        found[found] &= ~versions.deleted()[places[found]]
        chosen = versions.rows.take(pa.array(places, mask=~found))
        if not self._work.outer:
            kept = pa.array(found)
            rows, counts, chosen = rows.filter(kept), counts[found], chosen.filter(kept)
        yield from self._output(rows, counts, chosen)

    def _versions(self, keys: _Keys, until: Integers) -> _Versions:
        """All versions of these keys, stored and new, up to a time for each key. New ones follow the stored ones."""
        codec = KeyCodec(pa.schema([*self._owners.schema, self._work.versions.table.key_schema.field(TIME)]))
        ends = codec.encode_array(keys.columns.append_column(TIME, timestamps(moved(until, 1))))
        found = self._view.ranges(keys.groups, keys.encoded, ends)
        kept = list(self._work.versions.kept)
        of_state = times_of(column_of(found.values, self._work.versions.time))
        codes, there = self._codes_of_winners(keys)
        there[there] &= self._winners.times[there] <= until[codes[there]]
        new = self._winners.rows.select(kept).filter(pa.array(there))
        codes, times = codes[there], self._winners.times[there]
        # A winner replaces the stored version of the same time.
        replaced = _places(found.owner, of_state, codes, times, len(keys))
        stays = ~replaced
        return _Versions(
            np.concatenate([found.owner[stays], codes]),
            np.concatenate([of_state[stays], times]),
            pa.concat_tables([found.values.select(kept).filter(pa.array(stays)), new]).combine_chunks(),
        )

    def _codes_of_winners(self, keys: _Keys) -> tuple[Integers, Mask]:
        """The code among ``keys`` of each new version, and whether its key is one of them."""
        new = self._new_versions
        by_code = pc.index_in(new.encoded, value_set=keys.encoded)
        places = by_code.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = places[self._winners.codes] if len(places) else np.zeros(0, np.int64)
        return codes, codes >= 0

    @cached_property
    def _winners(self) -> _Versions:
        """One new version for each key and time, if its digest is greater than that of the stored version."""
        new, side = self._new_versions, self._work.versions
        rows = new.rows.append_column(TIME, timestamps(new.times))
        rows = rows.append_column(ROW, row_digests(rows, side.kept_schema))
        digests = packed(column_of(rows, ROW), np.dtype(">u8")).reshape(-1, 2)
        order = np.lexsort((digests[:, 1], digests[:, 0], new.times, new.codes))
        codes, times = new.codes[order], new.times[order]
        last = np.append((codes[1:] != codes[:-1]) | (times[1:] != times[:-1]), True)[: len(order)]
        order = order[last]
        rows = rows.take(pa.array(order))
        found, before = self._view.lookup(new.groups[new.codes[order]], self._full.encode_array(rows))
        greater = pc.greater(column_of(rows, ROW), column_of(before, ROW)).fill_null(True)
        wins = ~found | greater.to_numpy(zero_copy_only=False)
        return _Versions(new.codes[order][wins], new.times[order][wins], rows.filter(pa.array(wins)))

    def _keep_versions(self) -> None:
        """Stage the new versions. Of those before the watermark only the newest stays, unless it is a deletion."""
        new, side, until = self._winners, self._work.versions, self._passed_until
        put = np.ones(len(new.codes), np.bool_)
        passed = self._passed()
        if passed is not None:
            codes, there = self._codes_of_winners(passed)
            old = there & (new.times <= until)
            newest = self._newest(passed)
            put[old] = self._stays(newest, codes[old], new.times[old])
            self._delete(passed, newest)
        groups = self._new_versions.groups[new.codes]
        values = [*side.table.key_schema.names, *side.table.value_schema.names]
        self._stage(side.table, groups[put], new.rows.select(values).filter(pa.array(put)), "put")
        ahead = new.times > until
        waiting = self._work.passing
        rows = new.rows.select(waiting.key_schema.names).filter(pa.array(ahead))
        yes = pa.repeat(pa.scalar(True), rows.num_rows)
        self._stage(waiting, groups[ahead], rows.append_column(waiting.value[0].name, yes), "put")

    def _passed(self) -> _Keys | None:
        """The keys with a version that the watermark has passed since the parent epoch."""
        names = [*self._owners.schema.names, KEY_GROUP]
        passing = self._access(self._work.passing)
        parts = [rows.select(names) for rows in passing.due(self._groups, BEGINNING, _after(self._passed_until))]
        new = self._winners
        old = pa.array(new.times <= self._passed_until)
        parts.append(new.rows.select(names).filter(old))
        schema = parts[-1].schema
        rows = pa.concat_tables([part.cast(schema) for part in parts]).combine_chunks()
        return _Keys(rows, column_of(rows, KEY_GROUP).to_numpy(), self._owners) if rows.num_rows else None

    def _newest(self, keys: _Keys) -> tuple[Integers, Mask]:
        """For each key, the time of its newest version before the watermark, and whether that is a deletion."""
        codes, times = np.arange(len(keys)), np.full(len(keys), self._passed_until)
        versions = self._versions(keys, times)
        found, places = versions.at(codes, times, len(keys))
        newest = np.where(found, versions.times[places], BEGINNING)
        return newest, versions.deleted()[places] & found

    def _stays(self, newest: tuple[Integers, Mask], codes: Integers, times: Integers) -> Mask:
        latest, deleted = newest
        mask: Mask = (times == latest[codes]) & ~deleted[codes]
        return mask

    def _delete(self, keys: _Keys, newest: tuple[Integers, Mask]) -> None:
        """Delete the stored versions of these keys that no row can need."""
        table = self._work.versions.table
        codec = KeyCodec(pa.schema([*self._owners.schema, table.key_schema.field(TIME)]))
        ends = np.full(len(keys), _after(self._passed_until))
        bounds = codec.encode_array(keys.columns.append_column(TIME, timestamps(ends)))
        found = self._view.ranges(keys.groups, keys.encoded, bounds)
        times = times_of(column_of(found.values, self._work.versions.time))
        gone = ~self._stays(newest, found.owner, times)
        rows = self._full.decode(found.keys.filter(pa.array(gone)))
        self._stage(table, keys.groups[found.owner[gone]], rows, "delete")

    def _stage(self, table: StateTable, groups: Groups, rows: pa.Table, operation: str) -> None:
        if rows.num_rows:
            self._subtask.transaction.stage(table.id, delta_rows(table, groups, operation, rows.columns))

    def _output(self, rows: pa.Table, counts: Integers, versions: pa.Table | None) -> Iterator[pa.RecordBatch]:
        work = self._work
        for row, _ in Runs(np.zeros(len(counts), np.int64), counts).pairs(work.output_rows):
            yield with_versions(self._subtask.output, work.rows, rows, work.versions, versions, row)

    def _add_due_time(self) -> None:
        """Add the due time of the first waiting row. A row exactly at the watermark may still match a new version."""
        here = self._new.times[self._work.rows.stays(self._new.times, self._fire)]
        later = next(self._waiting.due(self._groups, self._fire, END, batch_rows=1), None)
        times = here if later is None else np.concatenate([here, times_of(column_of(later, TIME))])
        if len(times):
            self._subtask.due.add(event=int(times.min()) + 1)

    def _access(self, table: StateTable) -> TableAccess:
        return TableAccess(table, self._subtask.transaction.view(table.id), self._subtask.max_parallelism)

    @cached_property
    def _groups(self) -> range:
        ownership = self._subtask.ownership
        return groups_of(ownership.subtask, ownership.parallelism, ownership.max_parallelism)


def with_versions(
    schema: pa.Schema, side: Side, rows: pa.Table, of_versions: Side, versions: pa.Table | None, places: Integers
) -> pa.RecordBatch:
    """The rows at these positions with their versions. ``versions``: one for each of ``rows``; ``None``: all null."""
    taken = rows.select([*side.key_names, *side.shown]).take(pa.array(places))
    columns = dict(zip(taken.column_names, taken.columns, strict=True))
    if versions is not None:
        others = versions.select(list(of_versions.shown)).take(pa.array(places))
        columns |= dict(zip(others.column_names, others.columns, strict=True))
    there = pa.table(columns)
    arrays = [column(there, f) if f.name in columns else pa.nulls(len(places), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _after(time: int) -> int:
    return min(time + 1, END)


def _places(codes: Integers, times: Integers, of_codes: Integers, of_times: Integers, count: int) -> Mask:
    """A mask of the pairs (code, time) that are among the others."""
    mask: Mask = TimesByCode(of_codes, of_times, count).near(codes, times, 0, 0).counts > 0
    return mask


@dataclass(frozen=True)
class LatestJoinWork:
    """The work of a latest join.

    ``versions``: their table has the newest version of each key by its ``time``, nulls first, then by digest.
    ``outer``: emit rows without a version, too.
    """

    rows: Side
    versions: Side
    outer: bool
    output_rows: int = OUTPUT_ROWS
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        new, versions = KeyedRows.of(slice, (self.rows, self.versions))
        newest, of_code = self._newest(subtask, versions)
        places = of_code[new.codes]
        found = places >= 0
        found[found] &= ~_deleted(newest)[places[found]]
        chosen = newest.take(pa.array(places, mask=~found))
        shown = np.arange(len(new)) if self.outer else np.flatnonzero(found)
        yield from self._batches(subtask, new.rows, chosen, shown)
        if self.outer:
            yield from self._batches(subtask, new.keyless, None, np.arange(new.keyless.num_rows))

    def _newest(self, subtask: Subtask, new: KeyedRows) -> tuple[pa.Table, Integers]:
        """The versions of the keys of the epoch, and the position of the newest for each code, or -1. Stages new
        ones."""
        table = self.versions.table
        found, stored = subtask.transaction.view(table.id).lookup(new.groups, new.encoded)
        rows = new.rows.select(list(self.versions.kept))
        rows = rows.append_column(ROW, row_digests(rows, self.versions.kept_schema)).cast(table.value_schema)
        versions = pa.concat_tables([stored.filter(pa.array(found)), rows]).combine_chunks()
        codes = np.concatenate([np.flatnonzero(found), new.codes])
        sorting = versions.select([self.versions.time, ROW]).append_column(_CODE, pa.array(codes))
        sorting = sorting.append_column(_KNOWN, pc.is_valid(column_of(versions, self.versions.time)))
        keys = [(name, "ascending") for name in (_CODE, _KNOWN, self.versions.time, ROW)]
        # Of equal versions the stored one stays, and is not written again.
        backwards = pa.array(np.arange(len(codes))[::-1])
        order = backwards.take(pc.sort_indices(sorting.take(backwards), sort_keys=keys))
        order = order.to_numpy()
        ordered = codes[order]
        last = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
        of_code = np.full(len(new.encoded), -1, np.int64)
        of_code[ordered[last]] = order[last]
        fresh = of_code[of_code >= int(found.sum())]
        if len(fresh):
            whose = codes[fresh]
            columns = [*new.keys.take(pa.array(whose)).columns, *versions.take(pa.array(fresh)).columns]
            subtask.transaction.stage(table.id, delta_rows(table, new.groups[whose], "put", columns))
        return versions, of_code

    def _batches(
        self, subtask: Subtask, rows: pa.Table, versions: pa.Table | None, places: Integers
    ) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(places), self.output_rows):
            part = places[start : start + self.output_rows]
            yield with_versions(subtask.output, self.rows, rows, self.versions, versions, part)


def _deleted(versions: pa.Table) -> Mask:
    if DELETED not in versions.column_names:
        return np.zeros(versions.num_rows, np.bool_)
    mask: Mask = column_of(versions, DELETED).fill_null(False).to_numpy(zero_copy_only=False)
    return mask
