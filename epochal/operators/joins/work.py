"""The rows of one side of a join in a task: the new ones of the epoch, and those that wait in state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.joins.interval_matching import Integers, TimesByCode, moved
from epochal.state.access import TableAccess
from epochal.state.column_bytes import Mask, column
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import Groups, groups_of
from epochal.state.table import StateTable
from epochal.state.watermarks import BEGINNING, END, behind
from epochal.tasks.operator import Subtask
from epochal.tasks.row_digests import row_digests
from epochal.tasks.slices import delta_rows
from epochal.tasks.subtask_rows import INPUT, KEY_GROUP, InputColumns
from epochal.tasks.values import column_of
from epochal.tasks.windows import times_of, timestamps

TIME, ROW, COUNT, MATCHED, WAITING = "_time", "_row", "_count", "_matched", "_waiting"
OWN_COLUMNS: Final = frozenset({TIME, ROW, COUNT, MATCHED, WAITING})
_RANGES_AT_A_TIME: Final = 1 << 13


@dataclass(frozen=True)
class Side:
    """One input of a join.

    ``kept``: its stored columns outside the key; ``shown``: its columns in the output. ``time``: the event time, or the
    column that orders versions. The time of a partner minus that of a row is in ``[low, high]``, microseconds.
    ``table``: its rows; ``waiting``: its rows without a partner, by time, if the join emits them.
    """

    number: int
    columns: InputColumns
    key_names: tuple[str, ...]
    kept: tuple[str, ...]
    shown: tuple[str, ...]
    time: str
    low: int
    high: int
    table: StateTable
    waiting: StateTable | None

    @property
    def after(self) -> int:
        """A row expires when the watermark reaches its time plus this number of microseconds."""
        return gone_after(self.high)

    def stays(self, times: Integers, fire: int) -> Mask:
        """A mask of the rows, by time, that may have a partner after ``fire``."""
        return moved(times, self.after) > fire

    @property
    def kept_schema(self) -> pa.Schema:
        return pa.schema([self.table.value_schema.field(name) for name in self.kept])


def gone_after(high: int) -> int:
    """The time after which a row expires: no partner can follow when the watermark has passed the partner's last time.

    If that is before the row's own time, the row stays until its own time: state never expires before it.
    """
    return max(high + 1, 0)


class KeyedRows:
    """The new rows of one side. ``keyless``: those with null in the key.

    ``codes``: the number of the key of each of ``rows``, the same on both sides, in the order of the keys; ``keys``,
    ``encoded`` and ``groups``: the keys, their encoded form and their key groups, by code.
    """

    def __init__(
        self, side: Side, rows: pa.Table, keyless: pa.Table, codes: Integers, keys: pa.Table, encoded: pa.BinaryArray
    ) -> None:
        self.side = side
        self.rows = rows
        self.keyless = keyless
        self.codes = codes
        self.keys = keys.select(list(side.key_names))
        self.encoded = encoded
        self.groups: Groups = column_of(keys, KEY_GROUP).to_numpy()

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @classmethod
    def of(cls, slice: pa.Table, sides: Sequence[Side]) -> list[Self]:
        """The rows of each side in the united rows of a subtask."""
        keyed, keyless = [], []
        for side in sides:
            rows = _own(slice, side)
            without = _has_null(rows, side.key_names)
            keyless.append(rows.filter(without) if without is not None else rows.slice(0, 0))
            keyed.append(rows.filter(pc.invert(without)) if without is not None else rows)
        names = [*sides[0].key_names, KEY_GROUP]
        keys = pa.concat_tables([rows.select(names) for rows in keyed]).combine_chunks()
        encoded = KeyCodec(sides[0].table.owner_schema).encode_array(keys).dictionary_encode()
        # Ranges of state are then read in the order of storage.
        order = pc.array_sort_indices(encoded.dictionary).to_numpy()
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        codes = ranks[encoded.indices.to_numpy()]
        by_code = keys.take(pa.array(first_of_each(codes, len(order))))
        encoded_by_code = encoded.dictionary.take(pa.array(order))
        bounds = np.cumsum([0, *(rows.num_rows for rows in keyed)])
        return [
            cls(side, rows, alone, codes[first:end], by_code, encoded_by_code)
            for side, rows, alone, first, end in zip(sides, keyed, keyless, bounds[:-1], bounds[1:], strict=True)
        ]


class NewRows(KeyedRows):
    """New rows with times. ``matched``: the rows with a partner in this epoch."""

    def __init__(
        self, side: Side, rows: pa.Table, keyless: pa.Table, codes: Integers, keys: pa.Table, encoded: pa.BinaryArray
    ) -> None:
        super().__init__(side, rows, keyless, codes, keys, encoded)
        self.times = times_of(column_of(rows, side.time))
        self.by_time = TimesByCode(codes, self.times, keys.num_rows)
        self.matched: Mask = np.zeros(rows.num_rows, np.bool_)


@dataclass(frozen=True, eq=False)
class StateBatch:
    """Rows of a side's table, sorted by code and time. ``keys``: their encoded full keys."""

    codes: Integers
    times: Integers
    counts: Integers
    groups: Groups
    keys: pa.BinaryArray
    rows: pa.Table

    def __len__(self) -> int:
        return len(self.counts)

    def only(self, mask: Mask) -> StateBatch:
        chosen = pa.array(mask)
        keys, rows = self.keys.filter(chosen), self.rows.filter(chosen)
        return StateBatch(self.codes[mask], self.times[mask], self.counts[mask], self.groups[mask], keys, rows)


class StoredRows:
    """The waiting rows of one side after the parent epoch, and the changes of this epoch to them."""

    def __init__(self, side: Side, subtask: Subtask, batch_rows: int) -> None:
        self.side = side
        self._subtask = subtask
        self._batch_rows = batch_rows
        self._view = subtask.transaction.view(side.table.id)
        self._codec = KeyCodec(side.table.key_schema)
        self._bounds = KeyCodec(pa.schema([*side.table.owner_schema, side.table.key_schema.field(TIME)]))
        self._new: _Bag | None = None
        self._matched: list[pa.BinaryArray] = []

    def prepare(self, new: NewRows, fire: int) -> None:
        """Collect the new rows of this side to store, before matching."""
        stays = np.flatnonzero(self.side.stays(new.times, fire))
        self._new = _Bag.of(self.side, new, stays, self._codec) if len(stays) else None

    def near(self, new: NewRows) -> Iterator[StateBatch]:
        """The rows of this side near rows of the other side, and possibly more rows of the same keys, in batches."""
        codes, least, greatest = new.by_time.extremes(new.keys.num_rows, new.codes, new.times)
        low, high = moved(least, new.side.low), moved(greatest, new.side.high + 1)
        for start in range(0, len(codes), _RANGES_AT_A_TIME):
            part = slice(start, start + _RANGES_AT_A_TIME)
            keys = new.keys.take(pa.array(codes[part]))
            yield from self._ranges(
                codes[part], new.groups[codes[part]], self._bound(keys, low[part]), self._bound(keys, high[part])
            )

    def with_key(self, batch: StateBatch) -> pa.Table:
        """The rows with the columns of the key."""
        key = self._codec.decode(batch.keys).select(list(self.side.key_names))
        return pa.table([*key.columns, *batch.rows.columns], names=[*key.column_names, *batch.rows.column_names])

    def delete(self, batch: StateBatch) -> None:
        """Delete matched rows that need no further partner."""
        self._stage(self.side.table, batch, "delete")
        if self.side.waiting is not None:
            self._no_longer_waiting(batch)

    def mark_matched(self, batch: StateBatch, found: Mask) -> None:
        """Store that the rows ``found`` have a partner, unless it is stored already."""
        had_none = ~column_of(batch.rows, MATCHED).to_numpy(zero_copy_only=False)
        first = batch.only(found & had_none)
        self._no_longer_waiting(first)
        if self._new is not None:  # put() writes the rows that also arrived in this epoch
            again = pc.is_in(first.keys, value_set=self._new.keys)
            first = first.only(~again.to_numpy(zero_copy_only=False))
        self._stage(self.side.table, first, "put")

    def due(self, fire: int) -> Iterator[StateBatch]:
        """Rows without a partner, in this epoch and before, which can have none after ``fire``."""
        end = behind(fire, self.side.after - 1)
        matched = pa.concat_arrays(self._matched) if self._matched else None
        for rows in self._waiting.due(self._groups, BEGINNING, end, self._batch_rows):
            keys = self._codec.encode_array(rows)
            of_group = column_of(rows, KEY_GROUP).to_numpy()
            if matched is not None:
                left = pc.invert(pc.is_in(keys, value_set=matched))
                keys, of_group = keys.filter(left), of_group[left.to_numpy(zero_copy_only=False)]
            _, values = self._view.lookup(of_group, keys)
            yield self._batch(np.zeros(len(keys), np.int64), of_group, keys, values)

    def put(self, new: NewRows, fire: int, *, only_unmatched: bool) -> None:
        """Stage the new rows of this side that stay, and the time that they wait for."""
        bag, waiting = self._new, self.side.waiting
        if bag is not None:
            matched = new.matched[bag.first]
            if only_unmatched:
                bag, matched = bag.only(~matched), matched[~matched]
            self._stage_new(bag, matched)
        if waiting is not None:
            self._add_due_time(new, fire)

    def _ranges(
        self, codes: Integers, groups: Groups, low: pa.BinaryArray, high: pa.BinaryArray
    ) -> Iterator[StateBatch]:
        while len(codes):
            limit = max(1, self._batch_rows // len(codes))
            found = self._view.ranges(groups, low, high, limit)
            if len(found.keys):
                yield self._batch(codes[found.owner], groups[found.owner], found.keys, found.values)
            read = np.bincount(found.owner, minlength=len(codes))
            on = np.flatnonzero(read == limit)
            last = found.keys.take(pa.array(np.cumsum(read)[on] - 1))
            low = pc.binary_join_element_wise(last, pa.scalar(b"\0"), pa.scalar(b""))
            codes, groups, high = codes[on], groups[on], high.take(pa.array(on))

    def _batch(self, codes: Integers, groups: Groups, keys: pa.BinaryArray, values: pa.Table) -> StateBatch:
        times = times_of(column_of(values, self.side.time))
        return StateBatch(codes, times, column_of(values, COUNT).to_numpy(), groups, keys, values)

    def _bound(self, keys: pa.Table, times: Integers) -> pa.BinaryArray:
        return self._bounds.encode_array(keys.append_column(TIME, timestamps(times)))

    def _stage(self, table: StateTable, batch: StateBatch, operation: str) -> None:
        if not len(batch):
            return
        key = self._codec.decode(batch.keys)
        if operation == "put":
            yes = pa.repeat(pa.scalar(True), len(batch))
            values = batch.rows.set_column(batch.rows.schema.get_field_index(MATCHED), MATCHED, yes)
            self._changes(table, batch.groups, operation, [*key.columns, *values.columns])
        else:
            self._changes(table, batch.groups, operation, key.columns)

    def _no_longer_waiting(self, batch: StateBatch) -> None:
        waiting = self.side.waiting
        assert waiting is not None
        if len(batch):
            self._matched.append(batch.keys)
            key = self._codec.decode(batch.keys).select(waiting.key_schema.names)
            self._changes(waiting, batch.groups, "delete", key.columns)

    def _stage_new(self, bag: _Bag, matched: Mask) -> None:
        _, before = self._view.lookup(bag.groups, bag.keys)
        counts = bag.counts + column_of(before, COUNT).fill_null(0).to_numpy(zero_copy_only=False)
        values = [*bag.rows.select(list(self.side.kept)).columns, pa.array(counts)]
        if MATCHED in self.side.table.value_schema.names:
            values.append(pa.array(matched))
        key = bag.rows.select(self.side.table.key_schema.names)
        self._changes(self.side.table, bag.groups, "put", [*key.columns, *values])
        waiting = self.side.waiting
        if waiting is not None and not matched.all():
            chosen = pa.array(~matched)
            key = bag.rows.select(waiting.key_schema.names).filter(chosen)
            yes = pa.repeat(pa.scalar(True), key.num_rows)
            self._changes(waiting, bag.groups[~matched], "put", [*key.columns, yes])

    def _changes(self, table: StateTable, groups: Groups, operation: str, columns: Sequence[pa.ChunkedArray]) -> None:
        self._subtask.transaction.stage(table.id, delta_rows(table, groups, operation, columns))

    def _add_due_time(self, new: NewRows, fire: int) -> None:
        """Add the due time of the first of all waiting rows."""
        waiting = self.side.waiting
        assert waiting is not None
        here = new.times[~new.matched & self.side.stays(new.times, fire)]
        later = next(self._waiting.due(self._groups, behind(fire, self.side.after - 1), END, batch_rows=1), None)
        times = here if later is None else np.concatenate([here, times_of(column_of(later, TIME))])
        if len(times):
            self._subtask.due.add(event=int(times.min()) + self.side.after)

    @cached_property
    def _groups(self) -> range:
        ownership = self._subtask.ownership
        return groups_of(ownership.subtask, ownership.parallelism, ownership.max_parallelism)

    @cached_property
    def _waiting(self) -> TableAccess:
        table = self.side.waiting
        assert table is not None
        return TableAccess(table, self._subtask.transaction.view(table.id), self._subtask.max_parallelism)


@dataclass(frozen=True, eq=False)
class _Bag:
    """Distinct new rows: ``first``, the position of one of each; their counts; their encoded full keys.

    ``rows``: with the columns of the full key and the stored columns.
    """

    first: Integers
    counts: Integers
    groups: Groups
    keys: pa.BinaryArray
    rows: pa.Table

    @classmethod
    def of(cls, side: Side, new: NewRows, positions: Integers, codec: KeyCodec) -> _Bag:
        """The distinct rows among the new rows at these positions."""
        rows = new.rows.take(pa.array(positions))
        rows = rows.append_column(TIME, timestamps(new.times[positions]))
        rows = rows.append_column(ROW, row_digests(rows, side.kept_schema))
        encoded = codec.encode_array(rows).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.int64)
        count = len(encoded.dictionary)
        first = first_of_each(codes, count)
        groups = new.groups[new.codes[positions[first]]]
        counts = np.bincount(codes, minlength=count)
        return cls(positions[first], counts, groups, encoded.dictionary, rows.take(pa.array(first)))

    def only(self, mask: Mask) -> _Bag:
        chosen = pa.array(mask)
        keys, rows = self.keys.filter(chosen), self.rows.filter(chosen)
        return _Bag(self.first[mask], self.counts[mask], self.groups[mask], keys, rows)


def _own(slice: pa.Table, side: Side) -> pa.Table:
    """The rows of one input, with the columns of state."""
    carried = dict(zip(side.columns.names, side.columns.carried, strict=True))
    names = [*side.key_names, *(carried[name] for name in side.kept), KEY_GROUP]
    rows = slice.select(names).filter(pc.equal(slice.column(INPUT), side.number))
    fields = [*side.table.owner_schema, *side.kept_schema, pa.field(KEY_GROUP, pa.int32())]
    own = rows.rename_columns([field.name for field in fields])
    return pa.table([column(own, field) for field in fields], schema=pa.schema(fields))


def _has_null(rows: pa.Table, names: Sequence[str]) -> pa.Array | None:
    """A mask of the rows with null in one of the columns; ``None`` if no row has null."""
    masks = [column_of(rows, name).is_null() for name in names if rows.column(name).null_count]
    found = masks[0] if masks else None
    for mask in masks[1:]:
        found = pc.or_(found, mask)
    return found


def first_of_each(codes: Integers, count: int) -> Integers:
    """The first position of each code."""
    first = np.zeros(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first
