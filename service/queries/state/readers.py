"""Readers of rows: each answers from exactly one epoch, which it returns with each answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import NotFound, NotYetCommitted
from epochal.service.domain.snapshots import Snapshots, expiring
from epochal.service.runtime.replicas.changes import manifests_between
from epochal.service.runtime.replicas.expiring import row_times
from epochal.service.runtime.replicas.follower import FollowedTable
from epochal.service.runtime.replicas.overlay import Overlays, scan_of, value_of
from epochal.service.runtime.replicas.replica import Found
from epochal.snapshots.lineage import clock_of
from epochal.snapshots.reader import Row, SnapshotReader
from epochal.snapshots.scan import scan
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import gone
from epochal.state.json_form import to_json
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable


@dataclass(frozen=True, slots=True)
class Scanned:
    """Rows with a common key prefix, in key order: (encoded full key, encoded value)."""

    at: EpochKey
    rows: list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Section:
    """Among the keys with ``prefix``, in key order, the first ``limit`` after ``after``.

    ``owner``: the operator's key, encoded, if the prefix contains all of it.
    """

    prefix: bytes
    after: bytes | None
    limit: int
    owner: bytes | None = None


class Reader(ABC):
    """One state table at one epoch. May block; call from threads. Raises ``FileMissing``, ``FileCorrupt``."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> Found:
        """Values of the keys, in order, all from one epoch."""

    @abstractmethod
    def scan(self, prefix: bytes) -> Scanned:
        """All rows with the key prefix ``prefix``."""

    @abstractmethod
    def page(self, section: Section) -> Scanned:
        """A section of the rows, in key order."""

    @abstractmethod
    def since(self, at: EpochKey) -> Mapping[str, int]:
        """``StateTable.partial_since`` of the snapshot ``at``, from which this reader answered."""


class CommittedReader(Reader):
    """The latest committed epoch that the replica has reached."""

    def __init__(self, followed: FollowedTable) -> None:
        self._followed = followed

    def get_many(self, keys: Sequence[bytes]) -> Found:
        found = self._followed.replica.get_many(keys)
        if found is None:
            raise NotYetCommitted(f"The replica of {self._followed.table.id} is being built; try again later.")
        return found

    def scan(self, prefix: bytes) -> Scanned:
        return self._built(self._followed.replica.scan(prefix))

    def page(self, section: Section) -> Scanned:
        return self._built(self._followed.replica.page(section.prefix, section.after, section.limit))

    def since(self, at: EpochKey) -> Mapping[str, int]:
        return self._followed.table.partial_since  # a replica holds rows of one declaration

    def _built(self, found: tuple[EpochKey | None, list[tuple[bytes, bytes]]]) -> Scanned:
        at, rows = found
        if at is None:
            raise NotYetCommitted(f"The replica of {self._followed.table.id} is being built; try again later.")
        return Scanned(at, rows)


class UncommittedReader(Reader):
    """The latest prepared epoch: the replica, with the changes of later epochs over it.

    ``latest`` is the newest prepared snapshot of the lineage. A prepared epoch is decided and will be committed; only
    its sinks do not show it yet.
    """

    def __init__(
        self, followed: FollowedTable, latest: ManifestReference, store: SnapshotStore, overlays: Overlays
    ) -> None:
        self._followed = followed
        self._latest = latest
        self._store = store
        self._overlays = overlays
        self._committed = CommittedReader(followed)

    def get_many(self, keys: Sequence[bytes]) -> Found:
        found = self._committed.get_many(keys)
        at, changes = self._over(found.at)
        values = [value_of(key, value, changes) for key, value in zip(keys, found.values, strict=True)]
        if self._followed.table.expires is not None:
            there = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
            shown = dict(self._shown(there))
            values = [shown.get(key) for key in keys]
        return Found(at, values)

    def scan(self, prefix: bytes) -> Scanned:
        found = self._committed.scan(prefix)
        at, changes = self._over(found.at)
        return Scanned(at, self._shown(list(scan_of(prefix, found.rows, changes))))

    def page(self, section: Section) -> Scanned:
        # Later epochs may delete committed rows: read that many more.
        most = section.limit
        while True:
            committed = self._committed.page(replace(section, limit=most))
            at, changes = self._over(committed.at)
            whole = len(committed.rows) < most
            start = section.prefix if section.after is None else max(section.prefix, section.after + b"\0")
            end = None if whole else committed.rows[-1][0]
            above = [
                {key: row for key, row in change.items() if key >= start and (end is None or key <= end)}
                for change in changes
            ]
            rows = self._shown(list(scan_of(section.prefix, committed.rows, above)))
            if whole or len(rows) >= section.limit:
                return Scanned(at, rows[: section.limit])
            most *= 2

    def since(self, at: EpochKey) -> Mapping[str, int]:
        """The columns are those of the committed declaration; a later upgrade may have added one of them again."""
        table = self._followed.table
        if at != self._latest.key:
            return table.partial_since
        declared = self._store.read_manifest(self._latest).tables
        latest = next((each for each in declared if each.id == table.id), table)
        names = {column.name for column in (*table.visible, *table.shown)} if latest.partial_since else ()
        return {name: epoch for name, epoch in latest.partial_since.items() if name in names}

    def _shown(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Remove rows that have expired at the latest epoch: the replica has removed only those expired at the
        committed one."""
        table = self._followed.table
        times = row_times(table)
        horizon = table.horizon(clock_of(self._store.read_manifest(self._latest), table.id)) if times else None
        if times is None or horizon is None or not rows:
            return rows
        expired = gone(times.of([key for key, _ in rows], [value for _, value in rows]), horizon)
        return [row for row, is_gone in zip(rows, expired.tolist(), strict=True) if not is_gone]

    def _over(self, mark: EpochKey) -> tuple[EpochKey, list[dict[bytes, bytes | None]]]:
        manifests = manifests_between(self._store, self._latest, mark)
        if manifests is None:
            # The replica has passed the epoch that was read as the latest prepared one: it is newer.
            return mark, []
        return self._latest.key if manifests else mark, self._overlays.over(self._followed.table, manifests)


class PastReader(Reader):
    """A snapshot's state table, with keys and values in the format of replicas."""

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
    """The table's declaration at the snapshot. Raises ``NotFound``, also if it was not queryable."""
    declared = snapshot.table(table)
    if not declared.queryable:
        raise NotFound(f"State {table!r} of {application!r} {declared.unreadable}.")
    return declared


def _decoded(keys: Sequence[bytes], schema: pa.Schema) -> list[tuple[object, ...]]:
    columns = [column.to_pylist() for column in KeyCodec(schema).decode(keys).columns]
    return list(zip(*columns, strict=True))


Object = dict[str, Any]


def key_object(table: StateTable, row: Mapping[str, Any]) -> Object:
    """The columns of the address."""
    return {column.name: to_json(row[column.name], column.type) for column in table.address}


def value_object(table: StateTable, row: Mapping[str, Any] | None) -> Object | None:
    """The value columns and computed columns; ``None`` without a row."""
    if row is None:
        return None
    values = {column.name: to_json(row[column.name], column.type) for column in table.visible}
    return values | {column.name: to_json(value, column.type) for column, value in table.shown_of(row)}


def leading_object(table: StateTable, key: Sequence[Any]) -> Object:
    """An address, or only the operator's part, from its values in order."""
    return {column.name: to_json(value, column.type) for column, value in zip(table.address, key, strict=False)}
