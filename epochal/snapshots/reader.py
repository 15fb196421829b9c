"""State tables at any snapshot, read from the files alone: time travel, diffs, exports.

A look-up reads only what can hold its keys: the deltas of the subtask that owned the key group, newest first, then the
base of its range; and of each file the row groups whose statistics have the key group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from epochal.contracts.catalog import ManifestReference
from epochal.errors import FileCorrupt, NotFound
from epochal.snapshots.base import merged
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import DELETE
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileReference, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.column_bytes import as_list, column
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import key_group, subtask_of
from epochal.state.table import StateTable

Key = Sequence[Any]
Row = dict[str, Any]


class SnapshotReader:
    """One snapshot. Keys are Python values in the order of their columns; rows are Python values by column name.

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
        for table in self.manifest.tables:
            if table.id == id:
                return table
        known = ", ".join(table.id for table in self.manifest.tables) or "none"
        raise NotFound(f"Snapshot {self.reference.key} has no state table {id!r}; it has: {known}.")

    def read(self, id: str) -> pa.Table:
        """The whole state table: full key and value columns, sorted by (key group, key)."""
        table = self.table(id)
        last_group = self.manifest.max_parallelism - 1
        return merged(self.store, table, self._chains[id], 0, last_group).drop_columns(["_kg"])

    def get(self, id: str, keys: Sequence[Key]) -> list[Row | None]:
        """The value columns of each full key (key and sub-key values); ``None`` where there is no such row."""
        table = self.table(id)
        encoded = [KeyCodec(table.key_schema).encode_one(key) for key in keys]
        found = self._search(table, dict(zip(encoded, keys, strict=True)), len(table.full_key))
        return [_picked(found.get(key), table.value_schema.names) for key in encoded]

    def entries(self, id: str, keys: Sequence[Key]) -> list[list[Row]]:
        """What list or map state holds for each operator key: sub-key and value columns, in the sub-key's order."""
        table = self.table(id)
        codec = KeyCodec(table.key_schema)
        owners = [codec.encode_one(key) for key in keys]
        found = self._search(table, dict(zip(owners, keys, strict=True)), len(table.key))
        names = [field.name for field in table.sub_key] + table.value_schema.names
        by_owner: dict[bytes, list[Row]] = {owner: [] for owner in owners}
        for full_key in sorted(found):
            row = _picked(found[full_key], names)
            if row is not None:
                by_owner[codec.leading(full_key, len(table.key)) or full_key].append(row)
        return [by_owner[owner] for owner in owners]

    @cached_property
    def _chains(self) -> Mapping[str, Chain]:
        return read_chains(self.store, self.reference, [table.id for table in self.manifest.tables])

    def _search(self, table: StateTable, wanted: Mapping[bytes, Key], columns: int) -> dict[bytes, Row | None]:
        """The newest row, ``None`` when deleted, of every full key whose first columns are wanted."""
        key_schema = pa.schema([column.to_arrow(nullable=False) for column in table.key])
        groups = {
            encoded: key_group(key[: len(table.key)], key_schema, self.manifest.max_parallelism)
            for encoded, key in wanted.items()
        }
        whole = columns == len(table.full_key)
        found: dict[bytes, Row | None] = {}
        for file in _newest_first(self._chains[table.id]):
            pending = {key: group for key, group in groups.items() if not (whole and key in found)}
            if not pending:
                break
            here = {key: group for key, group in pending.items() if _can_hold(file, group)}
            for key, row in self._matches(table, file, here, columns):
                found.setdefault(key, row)
        return found

    def _matches(
        self, table: StateTable, file: DeltaFile | BaseFile, wanted: Mapping[bytes, int], columns: int
    ) -> Iterator[tuple[bytes, Row | None]]:
        if not wanted:
            return
        rows = self._rows_of_groups(table, file.file, set(wanted.values()))
        codec = KeyCodec(table.key_schema)
        full_keys = as_list(codec.encode_array(rows))
        positions = [place for place, key in enumerate(full_keys) if codec.leading(key, columns) in wanted]
        for place, row in zip(positions, rows.take(pa.array(positions, pa.int64())).to_pylist(), strict=True):
            yield full_keys[place], None if row.get("_op") == DELETE else row

    def _rows_of_groups(self, table: StateTable, file: FileReference, groups: set[int]) -> pa.Table:
        of = f"state {table.id!r} at {self.reference.key}"
        with self.store.open(file, of) as source:
            try:
                parquet = pq.ParquetFile(source, page_checksum_verification=True)
                parts = [part for part in range(parquet.num_row_groups) if _may_have(parquet, part, groups)]
                rows = parquet.read_row_groups(parts)
            except (pa.ArrowException, OSError) as error:
                raise FileCorrupt(
                    f"{self.store.location(file.path)}, of {of}, is damaged: {error}. "
                    "Restore the file from a copy, or read a snapshot that does not need it."
                ) from error
        fields = [field for field in table.delta_schema if field.name in rows.column_names]
        rows = pa.table([column(rows, field) for field in fields], schema=pa.schema(fields))
        return rows.filter(pc.is_in(rows.column("_kg"), pa.array(sorted(groups), pa.int32())))


def _newest_first(chain: Chain) -> Iterator[DeltaFile | BaseFile]:
    for link in reversed(chain.links):
        yield from link.deltas
    yield from chain.bases


def _can_hold(file: DeltaFile | BaseFile, group: int) -> bool:
    if isinstance(file, BaseFile):
        return file.first_group <= group <= file.last_group
    return subtask_of(group, file.parallelism) == file.subtask


def _may_have(parquet: pq.ParquetFile, part: int, groups: set[int]) -> bool:
    statistics = parquet.metadata.row_group(part).column(parquet.schema_arrow.names.index("_kg")).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return any(statistics.min <= group <= statistics.max for group in groups)


def _picked(row: Row | None, names: Sequence[str]) -> Row | None:
    return None if row is None else {name: row[name] for name in names}
