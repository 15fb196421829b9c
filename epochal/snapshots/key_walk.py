"""Writes to one key, from a snapshot back, epoch by epoch. Only deltas that can contain the key are read.

The walk ends at the application's first epoch, at the first declaration of the state table, or at missing files of
expired snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.delta import PUT
from epochal.snapshots.lineage import clock_of, declares
from epochal.snapshots.manifest import BaseFile, Manifest
from epochal.snapshots.reader import Key, RequestedKeys, Row, TableSearch, declared, key_table
from epochal.snapshots.row_groups import SMALL_BYTES, can_hold, concurrently, read_rows
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import StateClock
from epochal.state.json_form import from_json
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable
from epochal.state.types import integer_of

_LARGEST_WAVE = 64


@dataclass(frozen=True)
class KeyRow:
    """One row of the key: its encoded address, the key's columns, and the values; ``None`` when it was deleted.

    ``table``: declaration at the row's epoch. ``expired``: the row has expired and was not deleted.
    """

    table: StateTable
    encoded: bytes
    key: Row
    values: Row | None
    expired: bool = False


@dataclass(frozen=True)
class Step:
    """One epoch of the walk, and its writes to the key, in key order."""

    reference: ManifestReference
    manifest: Manifest
    writes: tuple[KeyRow, ...]


@dataclass(frozen=True)
class Gap:
    """End of a walk at a missing file of this snapshot."""

    key: EpochKey
    missing: FileMissing


@dataclass(frozen=True)
class Bases:
    """Bases of the state table, and the snapshot whose manifest names them."""

    named_by: ManifestReference
    at: EpochKey
    files: tuple[BaseFile, ...]

    @property
    def clock(self) -> StateClock | None:
        return self.files[0].clock if self.files else None


class KeyWalk:
    """One key of one state table: a full key, or the operator's key of list or map state (then all its entries).

    ``bases``: bases of a newer snapshot of this lineage, if the walk continues an earlier one.
    Raises ``FileCorrupt``; ``NotFound`` for a state table that is not declared at ``start``; ``InvalidKey``.
    """

    def __init__(
        self,
        store: SnapshotStore,
        table: str,
        key: Key,
        start: ManifestReference,
        bases: ManifestReference | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._start = start
        head = store.read_manifest(start)
        self._declared = declared(head, table)
        self._requested = RequestedKeys.of(self._declared, key_table(self._declared, [key]), head.max_parallelism)
        self.bases: Bases | None = None
        """The oldest bases found so far."""
        if bases is not None:
            self._note_bases(bases, store.read_manifest(bases))

    def __iter__(self) -> Iterator[Step | Gap]:
        """Steps, newest first. The number of epochs read concurrently grows. A gap is the last item."""
        reference: ManifestReference | None = self._start
        size = 1
        while reference is not None:
            wave: list[tuple[ManifestReference, Manifest]] = []
            gap: Gap | None = None
            while reference is not None and len(wave) < size and gap is None:
                try:
                    manifest = self._store.read_manifest(reference)
                except FileMissing as error:
                    gap = Gap(reference.key, error)
                else:
                    wave.append((reference, manifest))
                    reference = self.before(manifest)
            for (of, manifest), writes in zip(wave, self._writes_of([item[1] for item in wave]), strict=True):
                self._note_bases(of, manifest)
                if isinstance(writes, FileMissing):
                    yield Gap(of.key, writes)
                    return
                yield Step(of, manifest, writes)
            if gap is not None:
                yield gap
                return
            size = min(2 * size, _LARGEST_WAVE)

    def before(self, manifest: Manifest) -> ManifestReference | None:
        """Parent snapshot that has the state table; ``None`` if this epoch declared it first."""
        return manifest.parent if declares(manifest, self._table) else None

    def rows_at(self, end: ManifestReference | None) -> list[KeyRow]:
        """Rows of the key at a snapshot of the walk, from the nearest known bases. Raises ``FileMissing``."""
        if end is None:
            return []
        bases = self.bases if self.bases is not None and self.bases.at.epoch <= end.epoch else None
        links: list[Link] = []
        clock: StateClock | None = None
        reference: ManifestReference | None = end
        while reference is not None and (bases is None or reference.key != bases.at):
            manifest = self._store.read_manifest(reference)
            clock = clock if links else clock_of(manifest, self._table)
            if bases is None and manifest.bases:
                bases = self._bases_of(reference, manifest)
            if not declares(manifest, self._table):
                break
            links.append(Link(manifest.key, tuple(delta for delta in manifest.deltas if delta.table == self._table)))
            reference = manifest.parent
        if bases is None or reference is None or reference.key != bases.at:
            return self._rows(Chain(None, (), tuple(links[::-1]), clock))
        return self._rows(Chain(bases.at, bases.files, tuple(links[::-1]), clock if links else bases.clock))

    def rows_in(self, bases: Bases) -> list[KeyRow]:
        """The key's rows at the epoch of some bases."""
        return self._rows(Chain(bases.at, bases.files, (), bases.clock))

    def _rows(self, chain: Chain) -> list[KeyRow]:
        rows = TableSearch(self._store, self._declared, chain).find(self._requested).rows
        return list(_key_rows(self._declared, rows, [PUT] * rows.num_rows))

    def _note_bases(self, reference: ManifestReference, manifest: Manifest) -> None:
        if manifest.bases:
            self.bases = self._bases_of(reference, manifest)

    def _bases_of(self, reference: ManifestReference, manifest: Manifest) -> Bases:
        files = tuple(base for base in manifest.bases if base.table == self._table)
        return Bases(reference, manifest.bases[0].at, files)

    def _writes_of(self, manifests: Sequence[Manifest]) -> Iterable[tuple[KeyRow, ...] | FileMissing]:
        """Writes of epochs, in order. Small local files are read in one thread, since Python code takes most of the
        time."""
        size = sum(
            delta.file.bytes for manifest in manifests for delta in manifest.deltas if delta.table == self._table
        )
        alone = self._store.is_near and size <= SMALL_BYTES * len(manifests)
        return map(self._writes, manifests) if alone else concurrently(self._writes, manifests)

    def _writes(self, manifest: Manifest) -> tuple[KeyRow, ...] | FileMissing:
        if not declares(manifest, self._table):
            return ()
        table = declared(manifest, self._table)
        found: list[KeyRow] = []
        for delta in manifest.deltas:
            if delta.table == self._table and can_hold(delta, self._requested.groups).any():
                try:
                    rows = read_rows(self._store, table, delta.file, self._requested.groups, keep=False)
                except FileMissing as error:
                    return error
                found += self._matching(table, rows)
        return tuple(sorted(found, key=lambda row: row.encoded))

    def _matching(self, table: StateTable, rows: pa.Table) -> Iterator[KeyRow]:
        schema = pa.schema(list(table.address_schema)[: self._requested.columns])
        leading = KeyCodec(schema).encode_array(rows)
        rows = rows.filter(pc.equal(leading, self._requested.keys[0]))
        return _key_rows(table, rows, rows.column("_op").to_pylist())


def seen_at(manifest: Manifest, rows: Iterable[KeyRow]) -> list[KeyRow]:
    """Rows of one state table as seen at a later snapshot without writes to them: some may have expired."""
    found = list(rows)
    table = next((table for table in manifest.tables if found and table.id == found[0].table.id), None)
    horizon = None if table is None else table.horizon(clock_of(manifest, table.id))
    if table is None or horizon is None or table.expires is None:
        return found
    name = table.expires.column
    microseconds = integer_of(table.delta_schema.field(name).type)
    default = next((from_json(column.default, column) for column in table.value if column.name == name), None)
    for place, row in enumerate(found):
        time = None if row.values is None else (row.key | row.values).get(name, default)
        if time is not None and microseconds(time) <= horizon:
            found[place] = replace(row, values=None, expired=True)
    return found


def _key_rows(table: StateTable, rows: pa.Table, operations: list[str]) -> Iterator[KeyRow]:
    if not rows.num_rows:
        return
    keys = rows.select(table.key_schema.names).to_pylist()
    values = rows.select(table.value_schema.names).to_pylist()
    encoded = KeyCodec(table.address_schema).encode(rows)
    for bytes_of_key, key, value, operation in zip(encoded, keys, values, operations, strict=True):
        yield KeyRow(table, bytes_of_key, key, value if operation == PUT else None)
