"""State tables at any snapshot, read from the files alone: time travel, diffs, exports.

A look-up reads only files that can contain its keys: deltas of the subtask that owned the key group, newest first, then
the runs of its key group; and in each file the row groups whose statistics include the key group. The search ends when
every key is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.catalog import ManifestReference
from epochal.errors import NotFound
from epochal.snapshots.base_files import columns_of
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import PUT
from epochal.snapshots.key_filter import KeyHashes
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.manifest import BaseFile, DeltaFile, Manifest
from epochal.snapshots.merging import expired, merged, without_expired
from epochal.snapshots.row_groups import (
    THREADS,
    Groups,
    GroupSizes,
    cached_row_groups,
    can_hold,
    concurrently,
    conformed,
    group_sizes,
    read_rows,
)
from epochal.snapshots.store import SnapshotStore
from epochal.state.column_bytes import as_list
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable

Key = Sequence[Any]
Row = dict[str, Any]


class SnapshotReader:
    """One snapshot. Keys are Python values in the order of the address; rows are Python values by column name.

    Methods raise ``FileMissing`` or ``FileCorrupt``, naming the file, and ``NotFound`` for an unknown state table.
    """

    def __init__(self, store: SnapshotStore, reference: ManifestReference) -> None:
        self.store = store
        self.reference = reference

    @cached_property
    def manifest(self) -> Manifest:
        return self.store.read_manifest(self.reference)

    def table(self, id: str) -> StateTable:
        """The declaration of a state table, as it was at this snapshot."""
        return declared(self.manifest, id)

    def read(self, id: str) -> pa.Table:
        """The whole state table: full key and value columns, sorted by (key group, full key)."""
        table = self.table(id)
        return merged(self.store, table, self.chain(id), range(self.manifest.max_parallelism)).drop_columns(["_kg"])

    def get(self, id: str, keys: Sequence[Key]) -> list[Row | None]:
        """Value columns of each full key (key and sub-key values); ``None`` for a missing row."""
        table = self.table(id)
        found, places = self._find(table, keys)
        values = found.rows.select(table.value_schema.names).to_pylist()
        by_place = dict(zip(found.owner.tolist(), values, strict=True))
        return [by_place.get(place) for place in places]

    def entries(self, id: str, keys: Sequence[Key]) -> list[list[Row]]:
        """All rows of each operator key, by sub-key or time: sub-key, time and value columns."""
        table = self.table(id)
        found, places = self._find(table, keys)
        in_order = pc.sort_indices(KeyCodec(table.address_schema).encode_array(found.rows)).to_pylist()
        shown = found.rows.drop_columns([column.name for column in table.key]).to_pylist()
        by_place: dict[int, list[Row]] = {place: [] for place in places}
        for position in in_order:
            by_place[int(found.owner[position])].append(shown[position])
        return [by_place[place] for place in places]

    def find(self, id: str, keys: pa.Table) -> FoundRows:
        """Rows of many keys: full keys (at most one row each), or operator keys (all their rows). Keys must be
        distinct.
        """
        return self.search(id).find(RequestedKeys.of(self.table(id), keys, self.manifest.max_parallelism))

    def search(self, id: str) -> TableSearch:
        """Reads of one state table's files."""
        return TableSearch(self.store, self.table(id), self.chain(id))

    def sizes(self, id: str, most_files: int) -> TableSizes:
        """Rows and bytes of each key group in the table's files. Reads at most ``most_files``: runs, then the newest
        deltas."""
        table, chain, groups = self.table(id), self.chain(id), self.manifest.max_parallelism
        deltas = [delta for link in reversed(chain.links) for delta in link.deltas]
        files = [run.file for run in chain.bases] + [delta.file for delta in deltas]
        read = files[:most_files]
        total = GroupSizes.empty(groups)
        for sizes in concurrently(lambda file: group_sizes(self.store, table, file, groups), read):
            total = total.plus(sizes)
        return TableSizes(total, len(files), len(read))

    def chain(self, id: str) -> Chain:
        """The files that make up a state table at this snapshot."""
        return self._chains[id]

    def _find(self, table: StateTable, keys: Sequence[Key]) -> tuple[FoundRows, list[int]]:
        """Rows of keys, which may repeat, and for each key the owner of its rows."""
        encode = KeyCodec(table.address_schema).encode_one
        distinct: dict[bytes, int] = {}
        places = [distinct.setdefault(encode(key), len(distinct)) for key in keys]
        firsts = dict(zip(reversed(places), reversed(keys), strict=True))
        return self.find(table.id, key_table(table, [firsts[place] for place in range(len(distinct))])), places

    @cached_property
    def _chains(self) -> Mapping[str, Chain]:
        return read_chains(self.store, self.reference, [table.id for table in self.manifest.tables])


@dataclass(frozen=True)
class TableSizes:
    """Sizes of the key groups of a state table in ``read`` of its ``files``."""

    groups: GroupSizes
    files: int
    read: int


def declared(manifest: Manifest, id: str) -> StateTable:
    """The declaration of a state table in a manifest. Raises ``NotFound`` if it is missing or not durable."""
    check_durable(manifest, id)
    for table in manifest.tables:
        if table.id == id:
            return table
    known = ", ".join(table.id for table in manifest.tables) or "none"
    raise NotFound(f"Snapshot {manifest.key} has no state table {id!r}; it has: {known}.")


def check_durable(manifest: Manifest, id: str) -> None:
    """Raise ``NotFound`` for a state table that is not durable."""
    for table in manifest.tables:
        if table.id == id and not table.durable:
            raise NotFound(f"State {id!r} {table.unreadable}.")


def key_table(table: StateTable, keys: Sequence[Key]) -> pa.Table:
    """Keys as columns: full keys, or operator keys, all of one length."""
    width = len(keys[0]) if keys else len(table.full_key)
    fields = list(table.address_schema)[:width]
    columns = [pa.array([key[place] for key in keys], field.type) for place, field in enumerate(fields)]
    return pa.table(columns, schema=pa.schema(fields))


Job: TypeAlias = "tuple[DeltaFile | BaseFile, Groups]"
"""A file, and the positions of the requested keys that it can contain."""
Match: TypeAlias = "tuple[Groups, pa.Table]"
"""Rows of a file, and the position of the requested key that each belongs to."""

Piece = TypeVar("Piece")
_FEW_KEYS = 16
"""Up to this number of keys, searching a cached file is faster than starting a thread."""


@dataclass(frozen=True)
class RequestedKeys:
    """Distinct keys to find: their bytes, key groups, and the hashes of the operator's keys. ``columns``: number of the
    address's columns in the keys."""

    keys: pa.BinaryArray
    groups: Groups
    hashes: KeyHashes
    columns: int

    @classmethod
    def of(cls, table: StateTable, keys: pa.Table, max_parallelism: int) -> RequestedKeys:
        """``keys``: the columns of the full key, or those of the operator's key. Raises ``InvalidKey`` for a null
        in a time or a sub-key.
        """
        schema = pa.schema(list(table.address_schema)[: len(keys.column_names)])
        groups = table.key_groups(keys, max_parallelism)
        hashes = KeyHashes.of(keys, table.owner_schema)
        return cls(KeyCodec(schema).encode_array(keys), groups, hashes, len(schema))

    @cached_property
    def texts(self) -> list[bytes]:
        """The keys as Python bytes; for few keys."""
        return as_list(self.keys)

    def some(self, positions: Groups) -> RequestedKeys:
        keys = self.keys.take(pa.array(positions))
        return RequestedKeys(keys, self.groups[positions], self.hashes.some(positions), self.columns)


@dataclass(frozen=True)
class FoundRows:
    """Rows by requested key: ``owner[i]`` is the position of the requested key that ``rows[i]`` belongs to.

    ``rows`` has the full key and the value columns.
    """

    owner: Groups
    rows: pa.Table


class TableSearch:
    """Search of one state table along a chain. ``table``: declaration at the chain's end."""

    def __init__(self, store: SnapshotStore, table: StateTable, chain: Chain) -> None:
        self._store = store
        self._table = table
        self._chain = chain
        self._columns = [*table.key_schema.names, *table.value_schema.names]

    @cached_property
    def files(self) -> list[DeltaFile | BaseFile]:
        """Listed newest first. Two files of one epoch, or runs of one age, hold different key groups."""
        deltas = [delta for link in reversed(self._chain.links) for delta in link.deltas]
        return [*deltas, *reversed(self._chain.bases)]

    def find(self, requested: RequestedKeys) -> FoundRows:
        """Rows of all requested keys that exist. Raises ``FileMissing``, ``FileCorrupt``."""
        whole = requested.columns == len(self._table.full_key)
        searching = np.ones(len(requested.keys), bool)
        parts, owners = [self._nothing], [np.zeros(0, np.int32)]
        for wave in _waves(self.files):
            pending: Groups = np.flatnonzero(searching).astype(np.int32)
            if not len(pending):
                break
            jobs = [(file, here) for file in wave if len(here := pending[can_hold(file, requested.groups[pending])])]
            for owner, rows in self._matches_of(requested, jobs):
                if not len(owner):
                    continue
                if whole:
                    # An older file of the same wave may have the key, too.
                    newer = searching[owner]
                    owner, rows = owner[newer], rows if newer.all() else rows.filter(pa.array(newer))
                    searching[owner] = False
                owners.append(owner)
                parts.append(rows)
        found = pa.concat_tables(parts) if len(parts) > 1 else self._nothing
        owner = np.concatenate(owners)
        if not whole and found.num_rows:
            newest = self._newest(found)
            found, owner = found.take(newest), owner[newest]
        there = pc.equal(found.column("_op"), PUT).to_numpy()
        there = there & ~expired(self._table, found, self._chain.clock)
        return FoundRows(owner[there], found.filter(pa.array(there)).select(self._columns))

    def of_groups(self, groups: Groups | None) -> pa.Table:
        """All rows of some key groups, or of all: key group, full key and value columns, in no particular order."""
        return self.there(self.of_files(groups, lambda rows: rows))

    def of_files(self, groups: Groups | None, make: Callable[[pa.Table], Piece]) -> list[Piece]:
        """Results of ``make`` for the rows of some or all key groups in each file, newest file first. Rows have the
        declared columns; a key may have several rows, including deletes. Several threads call ``make``. Raises
        ``FileMissing``, ``FileCorrupt``."""
        files = [file for file in self.files if groups is None or can_hold(file, groups).any()]
        return list(concurrently(lambda file: make(read_rows(self._store, self._table, file.file, groups)), files))

    def there(self, of_files: Sequence[pa.Table]) -> pa.Table:
        """Rows at the snapshot, from the result of :meth:`of_files` or from all of its rows with certain keys."""
        versions = pa.concat_tables([self._nothing, *map(self._tagged, of_files)])
        rows = versions.take(self._newest(versions))
        rows = rows.filter(pc.equal(rows.column("_op"), PUT)).select(["_kg", *self._columns])
        return without_expired(self._table, rows, self._chain.clock)

    @cached_property
    def _nothing(self) -> pa.Table:
        return self._table.delta_schema.empty_table()

    def _matches_of(self, requested: RequestedKeys, jobs: Sequence[Job]) -> Iterator[Match]:
        """Matches of each file, in order. Cached files are searched in this thread, others by several threads."""
        kept = [
            self._kept(requested, *job) if self._in_key_order and len(job[1]) <= _FEW_KEYS else None for job in jobs
        ]
        others = iter(concurrently(lambda job: self._matches(requested, *job), _without(jobs, kept)))
        for match in kept:
            yield next(others) if match is None else match

    def _kept(self, requested: RequestedKeys, file: DeltaFile | BaseFile, here: Groups) -> Match | None:
        """Matches in a cached file; ``None`` if it is not cached."""
        if isinstance(file, BaseFile) and not self._has_present_columns(file):
            return None
        owners: list[int] = []
        found: list[pa.Table] = []
        for place in here.tolist():
            group = int(requested.groups[place])
            hashes = requested.hashes.some(slice(place, place + 1))
            row_groups = cached_row_groups(file.file, group, requested.texts[place], hashes)
            if row_groups is None:
                return None
            for row_group in row_groups:
                rows = row_group.rows_of(self._codec, group, requested.texts[place])
                if rows.num_rows:
                    found.append(self._tagged(conformed(rows, self._table)))
                    owners += [place] * rows.num_rows
        return np.array(owners, np.int32), pa.concat_tables(found) if found else self._nothing

    def _matches(self, requested: RequestedKeys, file: DeltaFile | BaseFile, here: Groups) -> Match:
        sought = requested.some(here)
        indexed = isinstance(file, BaseFile) and file.index is not None and self._has_present_columns(file)
        rows = read_rows(
            self._store,
            self._table,
            file.file,
            sought.groups,
            hashes=sought.hashes if indexed else None,
            keys=sought.texts if indexed and self._in_key_order else None,
        )
        rows = self._tagged(rows)
        leading = KeyCodec(pa.schema(list(self._table.address_schema)[: requested.columns]))
        place = pc.index_in(leading.encode_array(rows), value_set=sought.keys)
        hits = place.is_valid()
        return here[place.filter(hits).to_numpy(zero_copy_only=False)], rows.filter(hits)

    def _tagged(self, rows: pa.Table) -> pa.Table:
        if "_op" not in rows.column_names:
            rows = rows.append_column(pa.field("_op", pa.string(), nullable=False), pa.repeat(PUT, rows.num_rows))
        return rows.select(self._table.delta_schema.names)

    def _newest(self, rows: pa.Table) -> Groups:
        """Positions of each full key's first row, which is the newest."""
        return first_of_each(self._codec.encode_array(rows))

    @cached_property
    def _codec(self) -> KeyCodec:
        return KeyCodec(self._table.key_schema)

    @property
    def _in_key_order(self) -> bool:
        """True if rows of a key group are sorted by their addresses."""
        return self._table.time is None

    def _has_present_columns(self, run: BaseFile) -> bool:
        """True if the run's first keys and filters were computed from keys of the present types."""
        return run.columns == self._columns_now

    @cached_property
    def _columns_now(self) -> str:
        return columns_of(self._table)


def _without(jobs: Sequence[Job], done: Sequence[Match | None]) -> list[Job]:
    return [job for job, match in zip(jobs, done, strict=True) if match is None]


def first_of_each(keys: pa.BinaryArray) -> Groups:
    """First position of each distinct key, in order."""
    numbered = pa.table({"key": keys, "position": np.arange(len(keys))})
    firsts = numbered.group_by("key", use_threads=False).aggregate([("position", "min")])
    return np.sort(firsts.column("position_min").to_numpy())


def _waves(files: Sequence[DeltaFile | BaseFile]) -> Iterator[Sequence[DeltaFile | BaseFile]]:
    """Growing groups of files: recently changed keys are found in one file, others need all files."""
    start, size = 0, 1
    while start < len(files):
        yield files[start : start + size]
        start, size = start + size, min(2 * size, 2 * THREADS)
