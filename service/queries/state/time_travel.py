"""Look-ups in the past: one snapshot's files, read for just the keys that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from epochal.contracts.identity import EpochKey
from epochal.errors import NotFound
from epochal.service.domain.snapshots import Snapshots, expiring
from epochal.service.queries.state.readers import Reader, Scanned, Section
from epochal.service.runtime.replicas.replica import Found
from epochal.snapshots.reader import Row, SnapshotReader
from epochal.snapshots.scan import scan
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable


class PastReader(Reader):
    """A snapshot's state table, with the keys and values that replicas have."""

    def __init__(self, snapshot: SnapshotReader, table: StateTable, snapshots: Snapshots) -> None:
        self._snapshot = snapshot
        self._table = table
        self._snapshots = snapshots

    @property
    def _at(self) -> EpochKey:
        return self._snapshot.reference.key

    def get_many(self, keys: Sequence[bytes]) -> Found:
        decoded = _decoded(keys, self._table.address_schema)
        with expiring(self._snapshots, self._at):
            rows = self._snapshot.get(self._table.id, decoded)
        values = iter(self._encoded_values([row for row in rows if row is not None]))
        return Found(self._at, [None if row is None else next(values) for row in rows])

    def scan(self, prefix: bytes) -> Scanned:
        names = [column.name for column in self._table.key]
        (owner,) = _decoded([prefix], self._table.owner_schema)
        with expiring(self._snapshots, self._at):
            (rows,) = self._snapshot.entries(self._table.id, [owner])
        owned = dict(zip(names, owner, strict=True))
        full = pa.Table.from_pylist([owned | row for row in rows], schema=self._table.address_schema)
        keys = KeyCodec(self._table.address_schema).encode(full)
        return Scanned(self._at, list(zip(keys, self._encoded_values(rows), strict=True)))

    def page(self, section: Section) -> Scanned:
        groups = None
        if section.owner is not None:
            owner = KeyCodec(self._table.owner_schema).decode([section.owner])
            groups = self._table.key_groups(owner, self._snapshot.manifest.max_parallelism)
        with expiring(self._snapshots, self._at):
            found = scan(self._snapshot, self._table.id, section.prefix, section.after, section.limit, groups)
        values = RowCodec(self._table.value_schema).encode(found.rows)
        return Scanned(self._at, list(zip(found.keys, values, strict=True)))

    def since(self, at: EpochKey) -> Mapping[str, int]:
        return self._table.partial_since

    def _encoded_values(self, rows: Sequence[Row]) -> list[bytes]:
        schema = self._table.value_schema
        return RowCodec(schema).encode(pa.Table.from_pylist(list(rows), schema=schema))


def past_table(snapshot: SnapshotReader, application: str, table: str) -> StateTable:
    """The table's declaration as it was then. Raises ``NotFound``, also where it was not queryable."""
    declared = snapshot.table(table)
    if not declared.queryable:
        raise NotFound(f"State {table!r} of {application!r} {declared.unreadable}.")
    return declared


def _decoded(keys: Sequence[bytes], schema: pa.Schema) -> list[tuple[object, ...]]:
    columns = [column.to_pylist() for column in KeyCodec(schema).decode(keys).columns]
    return list(zip(*columns, strict=True))
