"""State tables at any snapshot, read from the files alone: time travel, diffs, exports.

A look-up reads only what can hold its keys: the deltas of the subtask that owned the key group, newest first, then the
base of its range; and of each file the row groups whose statistics have the key group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.catalog import ManifestReference
from epochal.errors import NotFound
from epochal.snapshots.base import merged
from epochal.snapshots.chain import Chain
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.search import FoundRows, RequestedKeys, TableSearch
from epochal.snapshots.store import SnapshotStore
from epochal.state.codec import KeyCodec
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
        last_group = self.manifest.max_parallelism - 1
        return merged(self.store, table, self.chain(id), 0, last_group).drop_columns(["_kg"])

    def get(self, id: str, keys: Sequence[Key]) -> list[Row | None]:
        """The value columns of each full key (key and sub-key values); ``None`` where there is no such row."""
        table = self.table(id)
        found, places = self._find(table, keys)
        values = found.rows.select(table.value_schema.names).to_pylist()
        by_place = dict(zip(found.owner.tolist(), values, strict=True))
        return [by_place.get(place) for place in places]

    def entries(self, id: str, keys: Sequence[Key]) -> list[list[Row]]:
        """All rows of each operator key: its list or map entries, by sub-key, or its times, and the value columns."""
        table = self.table(id)
        found, places = self._find(table, keys)
        in_order = pc.sort_indices(KeyCodec(table.address_schema).encode_array(found.rows)).to_pylist()
        shown = found.rows.drop_columns([column.name for column in table.key]).to_pylist()
        by_place: dict[int, list[Row]] = {place: [] for place in places}
        for position in in_order:
            by_place[int(found.owner[position])].append(shown[position])
        return [by_place[place] for place in places]

    def find(self, id: str, keys: pa.Table) -> FoundRows:
        """Many keys at once, column by column: full keys (at most one row each), or operator keys (all their rows).

        A key may be given once only.
        """
        return self.search(id).find(RequestedKeys.of(self.table(id), keys, self.manifest.max_parallelism))

    def search(self, id: str) -> TableSearch:
        """Reads of one state table's files."""
        return TableSearch(self.store, self.table(id), self.chain(id))

    def chain(self, id: str) -> Chain:
        """The files that make up a state table at this snapshot."""
        return self._chains[id]

    def _find(self, table: StateTable, keys: Sequence[Key]) -> tuple[FoundRows, list[int]]:
        """The rows of keys, of which some may be the same, and for each key the owner of its rows."""
        encode = KeyCodec(table.address_schema).encode_one
        distinct: dict[bytes, int] = {}
        places = [distinct.setdefault(encode(key), len(distinct)) for key in keys]
        firsts = dict(zip(reversed(places), reversed(keys), strict=True))
        return self.find(table.id, key_table(table, [firsts[place] for place in range(len(distinct))])), places

    @cached_property
    def _chains(self) -> Mapping[str, Chain]:
        return read_chains(self.store, self.reference, [table.id for table in self.manifest.tables])


def declared(manifest: Manifest, id: str) -> StateTable:
    """The declaration of a state table in a manifest. Raises ``NotFound``: there is none, or it is not durable."""
    check_durable(manifest, id)
    for table in manifest.tables:
        if table.id == id:
            return table
    known = ", ".join(table.id for table in manifest.tables) or "none"
    raise NotFound(f"Snapshot {manifest.key} has no state table {id!r}; it has: {known}.")


def check_durable(manifest: Manifest, id: str) -> None:
    """Raises ``NotFound`` for a state table that is in no snapshot."""
    for table in manifest.tables:
        if table.id == id and not table.durable:
            raise NotFound(f"State {id!r} {table.unreadable}.")


def key_table(table: StateTable, keys: Sequence[Key]) -> pa.Table:
    """Keys as columns: full keys, or operator keys, all of one length."""
    width = len(keys[0]) if keys else len(table.full_key)
    fields = list(table.address_schema)[:width]
    columns = [pa.array([key[place] for key in keys], field.type) for place, field in enumerate(fields)]
    return pa.table(columns, schema=pa.schema(fields))
