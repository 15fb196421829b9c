"""T2 of standing queries: partials of an epoch merge into the open windows; closing windows become results.

All state of a query is on one subtask, selected by its id. Open windows are stored by window and group. A result is
written once, when its window closes. A window with too many groups has one result row with an error.

``remember`` reads the aggregates of a group in its previous window (RBEA, thesis 4.4.1). The last window of each group
is stored by query and group, until ``REMEMBERED_WINDOWS`` windows of the query have had no row of the group. So the
remembered value is that of ``lag`` over the query's results before HAVING, in whatever epochs they are written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.standing_queries.aggregate_layout import (
    NOTHING,
    Integers,
    fulfils,
    layout_of,
    results,
    shown,
)
from epochal.operators.standing_queries.partials import DOUBLES, GROUP, INTEGERS, LEAST_OF, QUERY, WINDOW_END
from epochal.standing_queries.active import StandingQuery, decoded
from epochal.state.access import TableAccess
from epochal.state.column_bytes import Mask
from epochal.state.table import StateTable
from epochal.state.watermarks import BEGINNING, END
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import delta_rows, gathered
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of
from epochal.tasks.windows import times_of, timestamps

WINDOW_START, ERROR, ANSWERED_AT, ROWS, GROUPS = "window_start", "error", "answered_at", "rows", "groups"
NO_GROUP: Final = "{}"
_LISTS: Final = (INTEGERS, DOUBLES, LEAST_OF)
VALUES, FORGOTTEN_AT = "values", "forgotten_at"


@dataclass(frozen=True)
class StandingQueriesWork:
    """Output: ``query``, the window, ``group`` and ``values`` as JSON, ``error``. ``queries``: the encoded queries of
    the epoch; ``removed``: the ids of dropped queries; ``groups``: the maximum number of groups of a window."""

    operator: str
    open: StateTable
    windows: StateTable
    results: StateTable
    late: StateTable
    before: StateTable
    groups: int
    queries: bytes
    removed: tuple[int, ...] = ()
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        epoch = _Epoch(self, subtask)
        slice = gathered(rows)
        epoch.remove()
        epoch.count_late(slice.filter(slice[WINDOW_END].is_null()))
        yield from epoch.answered(slice.filter(slice[WINDOW_END].is_valid()).combine_chunks())


@dataclass(frozen=True)
class _Windows:
    """Windows with new rows. ``refused``: a mask of the groups above the limit; ``full``: the windows above the limit,
    by query and end."""

    refused: Mask
    full: set[tuple[int, int]]


class _Epoch:
    """The queries of one subtask in one epoch."""

    def __init__(self, work: StandingQueriesWork, subtask: Subtask) -> None:
        self._work, self._subtask = work, subtask
        self._active = {query.id: query for query in decoded(work.queries).of(work.operator)}
        owned = subtask.ownership
        self._groups = work.open.scope.groups_read(owned.subtask, owned.parallelism, owned.max_parallelism)
        self._after, self._until = subtask.watermarks.late, subtask.watermarks.fire

    @cached_property
    def _open(self) -> TableAccess:
        return self._access(self._work.open)

    @cached_property
    def _windows(self) -> TableAccess:
        return self._access(self._work.windows)

    @cached_property
    def _before(self) -> TableAccess:
        return self._access(self._work.before)

    def _access(self, table: StateTable) -> TableAccess:
        return TableAccess(table, self._subtask.transaction.view(table.id), self._subtask.max_parallelism)

    def remove(self) -> None:
        """Delete all state of dropped queries, so that it is not visible from this epoch on."""
        ids = pa.table({QUERY: pa.array(self._work.removed, pa.int64())})
        if not len(ids):
            return
        mine = self._work.open.key_groups(ids, self._subtask.max_parallelism)
        owned = np.unique(mine[np.isin(mine, list(self._groups))])
        for table in (self._work.open, self._work.windows, self._work.results):
            for found in self._access(table).due(owned, BEGINNING, END):
                dropped = found.filter(pc.is_in(found[QUERY], value_set=ids[QUERY].combine_chunks()))
                keys = [column_of(dropped, name) for name in table.key_schema.names]
                self._stage(table, column_of(dropped, KEY_GROUP), "delete", keys)
        late = ids.append_column(KEY_GROUP, pa.array(mine, pa.int32()))
        late = late.filter(pa.array(np.isin(mine, list(self._groups))))
        before = self._access(self._work.before).entries(late.select([QUERY]))
        of = late.take(pa.array(before.owner))
        keys = [column_of(of, QUERY), column_of(before.rows, GROUP)]
        self._stage(self._work.before, column_of(of, KEY_GROUP), "delete", keys)
        found, _ = self._access(self._work.late).get(late.select([QUERY]))
        late = late.filter(pa.array(found))
        self._stage(self._work.late, column_of(late, KEY_GROUP), "delete", [column_of(late, QUERY)])

    def count_late(self, rows: pa.Table) -> None:
        """Count the rows whose windows had already closed."""
        if not rows.num_rows:
            return
        counts = pc.list_element(rows[INTEGERS], 0)
        summed = pa.table([rows[QUERY], rows[KEY_GROUP], counts], names=[QUERY, KEY_GROUP, ROWS])
        summed = summed.group_by([QUERY, KEY_GROUP], use_threads=False).aggregate([(ROWS, "sum")])
        _, before = self._access(self._work.late).get(summed.select([QUERY]))
        total = pc.add(column_of(summed, f"{ROWS}_sum"), column_of(before, ROWS).fill_null(0))
        self._stage(self._work.late, column_of(summed, KEY_GROUP), "put", [column_of(summed, QUERY), total])

    def answered(self, slice: pa.Table) -> Iterator[pa.RecordBatch]:
        """Merge the new partials, and yield the results of closing windows."""
        merged, encoded, stored = self._merged(slice)
        windows = self._counted(merged, stored)
        ends = times_of(column_of(merged, WINDOW_END))
        stays = ends > self._until
        self._keep(merged.filter(pa.array(stays & ~windows.refused)))
        self._wait(ends[stays])
        if self._until == self._after:
            return
        closing = merged.filter(pa.array(~stays & ~windows.refused))
        again = encoded.filter(pa.array(~stays & stored))
        yield from self._closed(closing, again, windows.full)

    def _merged(self, slice: pa.Table) -> tuple[pa.Table, pa.BinaryArray, Mask]:
        """The new partials merged with stored ones (``_kg``, the key, the lists); the encoded keys; a mask of stored
        ones."""
        names = self._work.open.key_schema.names
        keys = slice.select(names)
        codes = self._open.encoded(keys).dictionary_encode()
        encoded = codes.dictionary
        numbers = codes.indices.to_numpy(zero_copy_only=False)
        _, firsts = np.unique(numbers, return_index=True)
        unique = slice.take(pa.array(firsts)).combine_chunks()
        groups = column_of(unique, KEY_GROUP)
        found, old = self._open.get_encoded(encoded, groups.to_numpy(zero_copy_only=False))
        before = np.flatnonzero(found)
        rows = pa.concat_tables([slice.select(_LISTS), old.select(_LISTS).take(pa.array(before))]).combine_chunks()
        numbers = np.concatenate([numbers, before])
        columns = [
            _reduced(column_of(rows, INTEGERS), numbers, len(firsts), np.add, 0),
            _reduced(column_of(rows, DOUBLES), numbers, len(firsts), np.add, 0),
            _reduced(column_of(rows, LEAST_OF), numbers, len(firsts), np.minimum, NOTHING),
        ]
        own = [groups, *(column_of(unique, name) for name in names)]
        return pa.table([*own, *columns], names=[KEY_GROUP, *names, *_LISTS]), encoded, np.asarray(found)

    def _counted(self, merged: pa.Table, stored: Mask) -> _Windows:
        """Update the number of groups of the windows of these groups."""
        keys = merged.select(self._work.windows.key_schema.names)
        codes = self._windows.encoded(keys).dictionary_encode()
        numbers = codes.indices.to_numpy(zero_copy_only=False)
        _, firsts = np.unique(numbers, return_index=True)
        unique = merged.take(pa.array(firsts)).combine_chunks()
        kept = column_of(unique, KEY_GROUP)
        _, before = self._windows.get_encoded(codes.dictionary, kept.to_numpy(zero_copy_only=False))
        were = column_of(before, GROUPS).fill_null(0).to_numpy(zero_copy_only=False)
        new = np.bincount(numbers[~stored], minlength=len(firsts))
        ends = times_of(column_of(unique, WINDOW_END))
        count = were + new
        changed = (new > 0) & (ends > self._until)
        columns = [column_of(unique, name).filter(pa.array(changed)) for name in self._work.windows.key_schema.names]
        # Above the limit, the exact number is not needed.
        total = pa.array(np.minimum(count, self._work.groups + 1)[changed], pa.int64())
        self._stage(self._work.windows, kept.filter(pa.array(changed)), "put", [*columns, total])
        full = count > self._work.groups
        queries = column_of(unique, QUERY).to_numpy(zero_copy_only=False)
        refused = np.zeros(len(stored), np.bool_)
        if full.any():
            order = np.flatnonzero(~stored)[np.argsort(numbers[~stored], kind="stable")]
            of_window = numbers[order]
            first = np.searchsorted(of_window, of_window, side="left")
            refused[order] = were[of_window] + np.arange(len(order)) - first >= self._work.groups
        return _Windows(refused, set(zip(queries[full].tolist(), ends[full].tolist(), strict=True)))

    def _keep(self, rows: pa.Table) -> None:
        table = self._work.open
        columns = [column_of(rows, name) for name in (*table.key_schema.names, *table.value_schema.names)]
        self._stage(table, column_of(rows, KEY_GROUP), "put", columns)

    def _wait(self, ends: Integers) -> None:
        if self._until == END:
            return
        stored = self._open.earliest(self._groups, self._until + 1)
        firsts = ([] if stored is None else [stored]) + ([int(ends.min())] if len(ends) else [])
        if firsts:
            self._subtask.due.add(event=min(firsts))

    def _closed(self, new: pa.Table, again: pa.BinaryArray, full: set[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        low, high = self._after + 1, self._until if self._until == END else self._until + 1
        due = list(self._open.due(self._groups, low, high))
        for found in self._windows.due(self._groups, low, high):
            many = found.filter(pc.greater(found[GROUPS], self._work.groups))
            full |= set(zip(many[QUERY].to_pylist(), times_of(column_of(many, WINDOW_END)).tolist(), strict=True))
        names = new.column_names
        tables = [new]
        for found in due:
            is_new = pc.is_in(self._open.encoded(found), value_set=again)
            tables.append(found.select(names).filter(pc.invert(is_new)))
        rows = pa.concat_tables([table.cast(new.schema) for table in tables])
        rows = rows.sort_by([(name, "ascending") for name in (QUERY, WINDOW_END, GROUP)]).combine_chunks()
        yield from self._results(rows, full)

    def _results(self, rows: pa.Table, full: set[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        ids = column_of(rows, QUERY).to_numpy(zero_copy_only=False)
        firsts = np.flatnonzero(np.diff(ids, prepend=-1))
        for first, last in zip(firsts, np.append(firsts[1:], len(ids)), strict=False):
            query = self._active.get(int(ids[first]))
            if query is not None:
                yield from self._results_of(query, rows.slice(first, last - first), full)

    def _results_of(self, query: StandingQuery, rows: pa.Table, full: set[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """The results of one query. ``rows``: its closing groups, by window."""
        ends = times_of(column_of(rows, WINDOW_END))
        known = ends - query.query.size >= query.since
        too_many = np.array([(query.id, end) in full for end in ends.tolist()], np.bool_)
        answered = rows.filter(pa.array(known & ~too_many)).combine_chunks()
        layout = layout_of(query.query)
        widths = (layout.integers, layout.doubles, layout.least)
        blocks = [_block(column_of(answered, name), width) for name, width in zip(_LISTS, widths, strict=True)]
        values, errors = results(query.query, *blocks)
        before = self._recalled(query, answered, ends[known & ~too_many], values)
        texts: list[str | None] = shown(query.query, values, before)  # type: ignore[assignment]
        groups = column_of(answered, GROUP).to_pylist()
        closed = ends[known & ~too_many].tolist()
        if query.query.having:
            kept = np.flatnonzero(fulfils(query.query, values, errors, before)).tolist()
            closed, groups, texts, errors = ([each[row] for row in kept] for each in (closed, groups, texts, errors))
        for end in np.unique(ends[known & too_many]).tolist():
            closed.append(end)
            groups.append(NO_GROUP)
            texts.append(None)
            errors.append(f"the window has more than {self._work.groups:,} groups; group by fewer columns, or filter")
        if not closed:
            return
        count = len(closed)
        kg = pa.repeat(column_of(rows, KEY_GROUP)[0], count)
        id, end = pa.array([query.id] * count, pa.int64()), timestamps(np.array(closed, np.int64))
        start = timestamps(np.array(closed, np.int64) - query.query.size)
        group, text, error = pa.array(groups, pa.string()), pa.array(texts, pa.string()), pa.array(errors, pa.string())
        at = timestamps(np.full(count, self._subtask.epoch_time))
        self._stage(self._work.results, kg, "put", [end, id, group, start, text, error, at])
        schema = self._subtask.output
        yield pa.RecordBatch.from_arrays([id, start, end, group, text, error], schema=schema)

    def _recalled(
        self, query: StandingQuery, rows: pa.Table, ends: Integers, values: Sequence[Sequence[Any]]
    ) -> Mapping[str, Sequence[Any]]:
        """The values of the previous windows. Stores those of these windows in their place."""
        if not (query.query.recalled and len(rows)):
            return {}
        key_group, table = column_of(rows, KEY_GROUP)[0], self._work.before
        found = recalled(query, self._before, key_group.as_py(), column_of(rows, GROUP), ends, values)
        self._stage(table, pa.repeat(key_group, len(found.columns[0])), "put", found.columns)
        return found.before

    def _stage(self, table: StateTable, groups: pa.Array, operation: str, columns: Sequence[Any]) -> None:
        if len(groups):
            self._subtask.transaction.stage(table.id, delta_rows(table, groups, operation, columns))


def _reduced(rows: pa.ListArray, codes: Integers, count: int, operation: np.ufunc, start: int) -> pa.ListArray:
    """Combine the lists of each code, which have equal lengths, element by element."""
    offsets = rows.offsets.to_numpy()
    lengths = np.diff(offsets)
    of_code = np.zeros(count, np.int64)
    of_code[codes] = lengths
    ends = np.cumsum(of_code)
    begins = ends - of_code
    flat = rows.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy(zero_copy_only=False)
    places = np.arange(len(flat)) + np.repeat(begins[codes] - (offsets[:-1] - offsets[0]), lengths)
    found: npt.NDArray[Any] = np.full(int(of_code.sum()), start, flat.dtype)
    operation.at(found, places, flat)
    bounds = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(found, rows.type.value_type))


def _block(rows: pa.ListArray, width: int) -> npt.NDArray[Any]:
    """Lists of equal length as the rows of an array."""
    flat: npt.NDArray[Any] = rows.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(rows), width)


@dataclass(frozen=True)
class Recalled:
    """``before``: by aggregate, its values in the previous windows, null if there is none. ``columns``: those of the
    state table, the full key and the values of the groups in this epoch."""

    before: dict[str, list[Any]]
    columns: tuple[pa.Array, ...]


def recalled(
    query: StandingQuery,
    access: TableAccess,
    key_group: int,
    groups: pa.StringArray,
    ends: Integers,
    values: Sequence[Sequence[Any]],
) -> Recalled:
    """The values of the previous window of each group. ``groups``, ``ends`` and ``values``: those of the closing
    windows, one for each group and window, with the values of all aggregates in JSON form."""
    places = {each.name: place for place, each in enumerate(query.query.aggregates) if each in query.query.recalled}
    encoded = groups.dictionary_encode()
    codes: Integers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.lexsort((ends, codes))
    is_first = np.diff(codes[order], prepend=-1) != 0
    firsts, others = order[is_first], np.flatnonzero(~is_first)
    sources: list[Sequence[Any] | None] = [None] * len(codes)
    for row, earlier in zip(order[others].tolist(), order[others - 1].tolist(), strict=True):
        if ends[row] - ends[earlier] <= query.query.reach:
            sources[row] = [values[earlier][place] for place in places.values()]
    of_groups = encoded.dictionary.take(pa.array(codes[firsts]))
    stored, kept = _stored(query, access, key_group, of_groups, ends[firsts])
    for row, text in zip(firsts[stored].tolist(), kept, strict=True):
        said = json.loads(text)
        sources[row] = [said[name] for name in places]
    before = {
        name: [None if source is None else source[position] for source in sources]
        for position, name in enumerate(places)
    }
    lasts = order[np.append(np.flatnonzero(is_first)[1:] - 1, len(order) - 1)] if len(order) else order
    texts = [json.dumps({name: values[row][place] for name, place in places.items()}) for row in lasts.tolist()]
    columns = (
        pa.array(np.full(len(lasts), query.id), pa.int64()),
        groups.take(pa.array(lasts)),
        timestamps(ends[lasts]),
        timestamps(ends[lasts] + query.query.reach),
        pa.array(texts, pa.string()),
    )
    return Recalled(before, columns)


def _stored(
    query: StandingQuery, access: TableAccess, key_group: int, groups: pa.StringArray, ends: Integers
) -> tuple[Mask, list[str]]:
    """A mask of the groups with a stored previous window, for windows that end at ``ends``, and the stored values."""
    keys = pa.table({QUERY: pa.array(np.full(len(groups), query.id), pa.int64()), GROUP: groups})
    found, rows = access.get(keys, np.full(len(groups), key_group, np.int32))
    held = np.array(found, np.bool_)
    was = times_of(column_of(rows.filter(pa.array(held)), WINDOW_END))
    # Windows before the query was resumed are ignored.
    holds = (ends[held] - was <= query.query.reach) & (was - query.query.size >= query.since)
    held[held] = holds
    return held, column_of(rows.filter(pa.array(held)), VALUES).to_pylist()
