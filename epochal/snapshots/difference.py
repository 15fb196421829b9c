"""The difference of a state table between two snapshots, column by column.

For close snapshots only the deltas between them are read, and the previous rows of the keys in these. If the deltas
have expired, or are larger than the states, whole states are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import NotFound, SchemaError
from epochal.snapshots.delta import PUT
from epochal.snapshots.lineage import Route, declares, is_continuous
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.merging import expired, folded, without_expired
from epochal.snapshots.reader import RequestedKeys, SnapshotReader, TableSearch, check_durable, declared, first_of_each
from epochal.snapshots.row_groups import concurrently, read_rows
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import StateClock
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TableDifference:
    """Keys whose rows differ, in key order. ``old`` and ``new`` have the full key and the value columns, as declared at
    each snapshot; if ``had`` or ``has`` is false the row does not exist, and all its columns are null.

    ``compared``: common value columns; rows that differ only in others are not included. ``before`` and ``after`` are
    ``None`` if the table is not declared and counts as empty. ``expired``: rows missing in the second snapshot that had
    expired there; a row that was deleted before it expired is included, since only its history shows this.
    """

    before: StateTable | None
    after: StateTable | None
    compared: tuple[str, ...]
    keys: pa.BinaryArray
    old: pa.Table
    new: pa.Table
    had: Mask
    has: Mask
    expired: Mask

    @property
    def added(self) -> int:
        return int((~self.had).sum())

    @property
    def deleted(self) -> int:
        return int((~self.has & ~self.expired).sum())

    @property
    def gone(self) -> int:
        """Number of expired rows."""
        return int(self.expired.sum())

    @property
    def changed(self) -> int:
        return int((self.had & self.has).sum())

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.old.nbytes + self.new.nbytes)


@dataclass(frozen=True)
class _Side:
    """Some rows of a state table at one of the snapshots."""

    table: StateTable
    rows: pa.Table
    clock: StateClock | None = None

    def at(self, keys: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Rows of keys, in their order, null for a missing row; and a mask of existing rows."""
        mine = KeyCodec(self.table.address_schema).encode_array(self.rows)
        place = pc.index_in(keys, value_set=mine)
        return self.rows.take(place), place.is_valid().to_numpy(zero_copy_only=False)


def table_difference(left: SnapshotReader, right: SnapshotReader, route: Route | None, id: str) -> TableDifference:
    """Differences from ``left`` to ``right``. Raises ``FileMissing``, ``FileCorrupt``; ``NotFound`` when neither has
    the table."""
    for side in (left, right):
        check_durable(side.manifest, id)
    before = declared(left.manifest, id) if declares(left.manifest, id) else None
    after = declared(right.manifest, id) if declares(right.manifest, id) else None
    known = before or after
    if known is None:
        raise NotFound(f"Neither snapshot {left.reference.key} nor {right.reference.key} has a state table {id!r}.")
    if before is not None and after is not None and before.address_schema != after.address_schema:
        raise SchemaError(
            f"State table {id!r} has different keys at {right.reference.key} and at {left.reference.key}: its rows "
            "cannot be compared. It was dropped and declared again between the two."
        )
    ancestor = _ancestor(left.store, route)
    follows = route is not None and before is not None and after is not None and _can_follow(route, ancestor, id)
    if route is None or before is None or after is None or not follows or _expires_between(left, right, id):
        sides = (_whole(left, before, known), _whole(right, after, known))
        keys = _distinct([KeyCodec(known.address_schema).encode_array(side.rows) for side in sides])
    else:
        sides, keys = _by_deltas((before, after), route, ancestor, left, right)
    return _compared(before, after, sides, keys)


def rows_difference(before: StateTable, old: pa.Table, after: StateTable, new: pa.Table) -> TableDifference:
    """Difference of whole state tables with equal keys; ``old`` and ``new`` have at least the declared columns."""
    sides = (_Side(before, old), _Side(after, new))
    keys = _distinct([KeyCodec(side.table.address_schema).encode_array(side.rows) for side in sides])
    return _compared(before, after, sides, keys)


def _expires_between(left: SnapshotReader, right: SnapshotReader, id: str) -> bool:
    """True if rows may have expired at one of the snapshots only, without a delta that names them."""
    horizons = [reader.table(id).horizon(reader.chain(id).clock) for reader in (left, right)]
    return horizons[0] != horizons[1]


def _can_follow(route: Route, ancestor: SnapshotReader | None, id: str) -> bool:
    start = None if ancestor is None else ancestor.manifest
    return all(is_continuous(side, start, id) for side in (route.left, route.right))


def _ancestor(store: SnapshotStore, route: Route | None) -> SnapshotReader | None:
    return None if route is None or route.ancestor is None else SnapshotReader(store, route.ancestor)


def _by_deltas(
    tables: tuple[StateTable, StateTable],
    route: Route,
    ancestor: SnapshotReader | None,
    left: SnapshotReader,
    right: SnapshotReader,
) -> tuple[tuple[_Side, _Side], pa.BinaryArray]:
    """Rows from the deltas between, and the ancestor's rows of keys that only one side has changed."""
    store, id, codec = right.store, tables[0].id, KeyCodec(tables[0].address_schema)
    paths = (route.left, route.right)
    changes = [folded(table, _deltas(store, table, path)) for table, path in zip(tables, paths, strict=True)]
    keys = [codec.encode_array(rows) for rows in changes]
    sides = []
    for mine, other in ((0, 1), (1, 0)):
        table = tables[mine]
        columns = [*table.key_schema.names, *table.value_schema.names]
        puts = changes[mine].filter(pc.equal(changes[mine].column("_op"), PUT)).select(columns)
        if ancestor is not None and declares(ancestor.manifest, id):
            untouched = pc.invert(pc.is_in(keys[other], value_set=keys[mine]))
            sought = changes[other].filter(untouched).select(table.key_schema.names)
            requested = RequestedKeys.of(table, sought, right.manifest.max_parallelism)
            puts = pa.concat_tables([puts, TableSearch(store, table, ancestor.chain(id)).find(requested).rows])
        clock = (left, right)[mine].chain(id).clock
        sides.append(_Side(table, without_expired(table, puts, clock), clock))
    return (sides[0], sides[1]), _distinct(keys)


def _deltas(store: SnapshotStore, table: StateTable, newest_first: Sequence[Manifest]) -> list[pa.Table]:
    files = [delta.file for manifest in reversed(newest_first) for delta in manifest.deltas if delta.table == table.id]
    return list(concurrently(lambda file: read_rows(store, table, file, None), files))


def _whole(reader: SnapshotReader, table: StateTable | None, known: StateTable) -> _Side:
    columns = [*known.key_schema.names, *known.value_schema.names]
    if table is None:
        return _Side(known, known.delta_schema.empty_table().select(columns))
    rows = reader.search(table.id).of_groups(None).drop_columns(["_kg"])
    return _Side(table, rows, reader.chain(table.id).clock)


def _distinct(keys: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    every = pa.concat_arrays(keys)
    return every.take(pa.array(first_of_each(every)))


def _compared(
    before: StateTable | None, after: StateTable | None, sides: tuple[_Side, _Side], keys: pa.BinaryArray
) -> TableDifference:
    (old, had), (new, has) = (side.at(keys) for side in sides)
    visible = [column.name for column in sides[1].table.visible]
    compared = [column.name for column in sides[0].table.visible if column.name in visible]
    different = had != has
    for name in compared:
        different |= had & has & _differs(old.column(name), new.column(name))
    places = np.flatnonzero(different)
    places = places[pc.sort_indices(keys.take(pa.array(places))).to_numpy()]
    chosen = pa.array(places)
    lost = had[places] & ~has[places]
    return TableDifference(
        before=before,
        after=after,
        compared=tuple(compared),
        keys=keys.take(chosen),
        old=old.take(chosen),
        new=new.take(chosen),
        had=had[places],
        has=has[places],
        expired=lost & expired(sides[1].table, old.take(chosen), sides[1].clock),
    )


def _differs(old: pa.ChunkedArray, new: pa.ChunkedArray) -> Mask:
    """Mask of different values. Nulls are equal, and NaNs are; a widened column is compared in its present type."""
    if old.type != new.type:
        old = old.cast(new.type)
    if pa.types.is_nested(new.type):
        old, new = (_comparable(side) for side in (old, new))
    differs = pc.fill_null(pc.not_equal(old, new), False)
    if pa.types.is_floating(new.type):
        both = pc.and_(pc.fill_null(pc.is_nan(old), False), pc.fill_null(pc.is_nan(new), False))
        differs = pc.and_not(differs, both)
    result: Mask = pc.or_(differs, pc.xor(old.is_null(), new.is_null())).to_numpy()
    return result


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Nested values as bytes, which are equal if the values are; Arrow cannot compare nested values."""
    array = column.combine_chunks()
    codec = RowCodec(pa.schema([pa.field("value", array.type)]))
    encoded = codec.encode_array(pa.table([array], schema=codec.schema))
    return pa.chunked_array([pc.if_else(array.is_valid(), encoded, pa.scalar(None, pa.binary()))])
