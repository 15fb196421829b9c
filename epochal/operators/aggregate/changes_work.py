"""``aggregate`` over a stream of changes: what was is subtracted, what is there now is added; a key may end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.change_rows import KeyRows
from epochal.aggregates.plan import AggregationPlan
from epochal.aggregates.retraction import ROWS, TIMES, VALUE
from epochal.contracts.state import StateView
from epochal.errors import ComputationFailed
from epochal.state.access import TableAccess
from epochal.state.column_bytes import data_and_offsets, ends_of_prefixes
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import Groups
from epochal.state.lists import ELEMENT, LIST, elements
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import SliceKeys, gathered

PLACE, COUNT = "_place", "_count"
_FIRST_LOOK, _FURTHER = 8, 8
"""The number of values to read of a key whose first value was deleted, and the factor by which it grows as long as all
values read were deleted."""
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AggregateChangesWork:
    """Output: rows of ``rows`` for the keys of the slice that had rows or have rows now.

    A key without rows is deleted from state. Raises ``ComputationFailed`` for a value that exceeds its type, and if
    more rows are retracted than were added.
    """

    plan: AggregationPlan
    rows: KeyRows
    multisets: tuple[Multiset, ...]
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = self.plan.table
        slice = gathered(rows)
        if not slice.num_rows:
            return
        keys = SliceKeys.of(subtask, table, slice)
        found, old = keys.stored()
        new = slice.select(table.value_schema.names)
        for multiset in self.multisets:
            before = old[multiset.column].combine_chunks()
            first = multiset.advanced(subtask, keys.rows, keys.groups.to_numpy(), new[multiset.column], before)
            new = new.set_column(new.column_names.index(multiset.column), multiset.column, first)
        merged = self.plan.merge(found, old, new, keys.shown)
        counts = merged[ROWS].to_numpy()
        if (counts < 0).any():
            raise ComputationFailed(
                f"Operator {self.plan.operator!r}: more rows of a key were retracted than added. The transforms before "
                "the operator have computed other values than when the row was added. Give the operator a new name to "
                "start with empty state."
            )
        now = counts > 0
        known = pa.array(found | now)
        op = pc.if_else(pa.array(now), "put", "delete")
        values = [pc.if_else(pa.array(now), column, pa.scalar(None, column.type)) for column in merged.columns]
        subtask.transaction.stage(table.id, keys.changes(op, values).filter(known))
        yield from self.rows.of(keys.rows, old, merged, found, now).filter(known).to_batches()


def multiset_table(operator: str, name: str, key: tuple[Column, ...]) -> StateTable:
    """The state table of the values of state column ``name``.

    A multiset holds how many times each value of a key occurs, in the order of the values. The sub-key is the value as
    bytes in that order, or for ``max`` in the opposite order, so that the first entry is the minimum or maximum.
    """
    return StateTable(
        id=f"{operator}.{name}",
        operator=operator,
        kind=StateKind.MAP,
        key=key,
        sub_key=(Column(name=PLACE, type="binary"),),
        value=(Column(name=COUNT, type="bigint"),),
        queryable=False,
    )


@dataclass(frozen=True)
class Multiset:
    """The values of one ``min`` or ``max``. ``column``: the aggregate's state column, which holds the first value."""

    column: str
    table: StateTable
    largest: bool

    def advanced(self, subtask: Subtask, keys: pa.Table, groups: Groups, changes: Any, first: Any) -> pa.Array:
        """The first value of each key after this slice, null if it has none. Stages the new counts of values.

        ``changes``: lists of structs of :data:`VALUE` and :data:`TIMES`; ``first``: the previous first values. Raises
        ``ComputationFailed`` if a value is retracted that does not exist.
        """
        order = _Order(first.type, self.largest)
        changed = _netted(order, changes)
        view = subtask.transaction.view(self.table.id)
        access = TableAccess(self.table, view, subtask.max_parallelism)
        full_keys = _with_place(self.table, keys.take(changed["row"]), changed["place"])
        its_groups, encoded = groups[changed["row"].to_numpy()], access.encoded(full_keys)
        found, old = access.get_encoded(encoded, its_groups)
        counts = pc.add(pc.fill_null(old[COUNT], 0), changed["times"]).to_numpy()
        if (counts < 0).any():
            raise ComputationFailed(
                f"Operator {subtask.operator!r}, column {self.column!r}: a value was retracted that does not exist. "
                "The transforms before the operator have computed other values than when the row was added. Give the "
                "operator a new name to start with empty state."
            )
        self._stage(subtask, full_keys, its_groups, counts, found)
        there = changed.filter(pa.array(counts > 0)).select(["row", "place"])
        is_gone, places = pa.array(counts == 0), order.places(first)
        gone = changed.filter(is_gone)
        following = self._next(view, keys, groups, places, there, gone, encoded.filter(is_gone))
        candidates = pa.concat_tables([there, self._kept(places, gone), following])
        return order.values(_least(candidates, len(first)))

    def _stage(self, subtask: Subtask, keys: pa.Table, groups: Groups, counts: Places, found: Any) -> None:
        kept = pa.array(counts > 0)
        written = pa.array((counts > 0) | found)
        value = pc.if_else(kept, pa.array(counts), pa.scalar(None, pa.int64()))
        arrays = [pa.array(groups), pc.if_else(kept, "put", "delete"), *keys.columns, value]
        rows = pa.table(arrays, names=self.table.delta_schema.names).filter(written)
        subtask.transaction.stage(self.table.id, rows.cast(self.table.delta_schema))

    def _kept(self, first: pa.Array, gone: pa.Table) -> pa.Table:
        """The previous first values that still exist."""
        rows = np.flatnonzero(~_lost(first, gone) & first.is_valid().to_numpy(zero_copy_only=False))
        return pa.table({"row": rows, "place": first.take(pa.array(rows))})

    def _next(
        self,
        view: StateView,
        keys: pa.Table,
        groups: Groups,
        first: pa.Array,
        there: pa.Table,
        gone: pa.Table,
        encoded_gone: pa.BinaryArray,
    ) -> pa.Table:
        """The next existing value of keys whose ``first`` was deleted.

        ``there``: changed values that still exist; ``encoded_gone``: the full keys of the deleted values ``gone``.
        """
        ahead = pc.less(_least(there, len(first)), first)
        # A new value may precede the deleted one, and so all stored values.
        lost = _lost(first, gone) & ~ahead.fill_null(False).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(lost)
        codec = KeyCodec(self.table.key_schema)
        its_keys = keys.take(pa.array(rows))
        after = codec.encode_array(_with_place(self.table, its_keys, first.take(pa.array(rows))))
        ends = ends_of_prefixes(KeyCodec(self.table.owner_schema).encode_array(its_keys))
        parts = [pa.table({"row": rows[:0], "place": first[:0]})]
        limit = _FIRST_LOOK
        while len(rows):
            low = pc.binary_join_element_wise(after, b"\0", b"")
            found = view.ranges(groups[rows], low, ends, limit)
            left = np.flatnonzero(~pc.is_in(found.keys, value_set=encoded_gone).to_numpy(zero_copy_only=False))
            owners, nearest = np.unique(found.owner[left], return_index=True)
            places = codec.decode(found.keys.take(pa.array(left[nearest])))[PLACE]
            parts.append(pa.table({"row": rows[owners], "place": places}))
            read = np.bincount(found.owner, minlength=len(rows))
            more = read == limit
            more[owners] = False
            after = found.keys.take(pa.array((np.cumsum(read) - 1)[more]))
            rows, ends = rows[more], ends.filter(pa.array(more))
            limit *= _FURTHER
        return pa.concat_tables(parts)


def _lost(first: pa.Array, gone: pa.Table) -> npt.NDArray[np.bool_]:
    """The rows whose ``first`` is among the deleted values ``gone``."""
    lost = np.zeros(len(first), np.bool_)
    rows = gone["row"].to_numpy()
    same = pc.equal(gone["place"].combine_chunks(), first.take(pa.array(rows))).fill_null(False)
    lost[rows[same.to_numpy(zero_copy_only=False)]] = True
    return lost


def _netted(order: _Order, changes: Any) -> pa.Table:
    """``row``, ``place`` and ``times``: the change of the count of each value, without values whose count is
    unchanged."""
    rows = elements(changes).combine_chunks()
    structs = rows[ELEMENT].combine_chunks()
    places = order.places(pc.struct_field(structs, VALUE))
    single = pa.table({"row": rows[LIST], "place": places, "times": pc.struct_field(structs, TIMES)})
    netted = single.group_by(["row", "place"]).aggregate([("times", "sum")]).rename_columns(["row", "place", "times"])
    return netted.filter(pc.not_equal(netted["times"], 0)).combine_chunks()


def _least(candidates: pa.Table, rows: int) -> pa.Array:
    """The least ``place`` of each row; null if it has none."""
    ordered = candidates.take(pc.sort_indices(candidates, [("row", "ascending"), ("place", "ascending")]))
    found, firsts = np.unique(ordered["row"].to_numpy(), return_index=True)
    at = np.full(rows, -1, np.int64)
    at[found] = firsts
    places = ordered["place"].combine_chunks()
    return places.take(pa.array(at, mask=at < 0))


def _with_place(table: StateTable, keys: pa.Table, places: Any) -> pa.Table:
    return keys.append_column(table.key_schema.field(PLACE), places).select(table.key_schema.names)


class _Order:
    """Converts values of one type to bytes in their order, or the opposite order, and back. NaN is the greatest number,
    as in Spark."""

    def __init__(self, type: pa.DataType, descending: bool) -> None:
        self._type = type
        self._descending = descending
        self._codec = KeyCodec(pa.schema([pa.field(VALUE, _stored(type))]))

    def places(self, values: Any) -> pa.Array:
        """A null value has a null place."""
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = self._codec.encode_array(pa.table({VALUE: _sortable(values)}))
        encoded = _inverted(encoded) if self._descending else encoded
        return pc.if_else(values.is_valid(), encoded, pa.scalar(None, pa.binary())) if values.null_count else encoded

    def values(self, places: pa.Array) -> pa.Array:
        there = places.drop_null()
        decoded = self._codec.decode(_inverted(there) if self._descending else there)[VALUE].combine_chunks()
        valid = places.is_valid().to_numpy(zero_copy_only=False)
        return _plain(decoded, self._type).take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _inverted(places: pa.BinaryArray) -> pa.BinaryArray:
    """The complement of the bytes, which has the opposite order: no place is a prefix of another."""
    data, offsets = data_and_offsets(places)
    return pa.Array.from_buffers(
        pa.binary(), len(places), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(~data)]
    )


def _stored(type: pa.DataType) -> pa.DataType:
    return {pa.float64(): pa.int64(), pa.float32(): pa.int32()}.get(type, type)


def _sortable(values: pa.Array) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return values
    # Adding zero maps both zeros to one; all NaN become one.
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False) + values.type.to_pandas_dtype()(0)
    numbers = np.where(np.isnan(numbers), values.type.to_pandas_dtype()(np.nan), numbers)
    bits = np.ascontiguousarray(numbers).view(f"i{numbers.dtype.itemsize}")
    return pa.array(np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits))


def _plain(values: pa.Array, type: pa.DataType) -> pa.Array:
    if not pa.types.is_floating(type):
        return values.cast(type)
    bits = values.to_numpy()
    return pa.array(np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits).view(type.to_pandas_dtype()), type)
