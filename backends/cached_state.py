"""Non-durable state tables: each subtask's rows are stored only in the cache folder of its machine.

The rows at an epoch are a list of deltas, oldest first, in a file that the manifest names (``CachedState``): only
decided epochs count. A subtask that does not find that file, or a file that it names, begins empty, and deletes the
files of earlier epochs. A subtask compacts its own list: when the list is long, all of its rows become one delta.

    {cache}/undurable/{boot}/{identity}/{subtask:05}/held/{epoch:010}-{unique}.json
    {cache}/undurable/{boot}/{identity}/{subtask:05}/{branch}/epochs/..                    deltas

Local stores catch up from such a list as from any chain. The marks of two lists in one place always differ, as a
decided epoch is in only one of them: a subtask that begins empty is detected, and its store is emptied. Files are not
synced to disk: after a crash of the system the folder is never read again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from epochal.backends.boot_folders import boot_folder, cache_identity
from epochal.backends.recent import remember
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import StateTaskScope
from epochal.errors import FileMissing, SnapshotError
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.delta import PUT, SortedChanges, sort_changes, write_delta
from epochal.snapshots.local_files import held_in_place, write_whole
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.merging import merged
from epochal.snapshots.remote_files import Data
from epochal.snapshots.storage_errors import storage_errors
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

MOST_DELTAS = 32
"""Maximum number of deltas in a list; a longer list is compacted."""

_NAME = re.compile(r"\d{10,}-[0-9a-f]{32}")


class UnsyncedStore(SnapshotStore):
    """Store of files that are valid until the machine stops."""

    def write(self, path: str, data: Data) -> None:
        assert self._root is not None  # it is a folder
        with (
            storage_errors(self.location(path)),
            held_in_place(self._root, self._root / path, make=True) as held,
        ):
            write_whole(held, memoryview(data).cast("B"))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    branch: str
    epoch: int
    delta: DeltaFile


class _Held(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    parts: tuple[_Part, ...] = ()


@dataclass(frozen=True)
class CachedTable:
    """Rows of one state table in a subtask at the parent epoch. ``began_empty``: older rows were lost."""

    table: StateTable
    store: UnsyncedStore
    name: str
    chain: Chain
    began_empty: bool

    def within(self, scope: StateTaskScope) -> StateTaskScope:
        """The task's scope, restricted to this table, at the last epoch that changed it."""
        epoch = replace(scope.epoch, parent=self.chain.at)
        return replace(scope, epoch=epoch, tables=(self.table,), chains={self.table.id: self.chain})

    def emptied(self, scope: StateTaskScope) -> CachedTable:
        """Return the empty table after the loss of or damage to a needed file."""
        return _empty(self.table, self.store, scope, lost=True)

    def changed(self, scope: StateTaskScope, changes: SortedChanges) -> str:
        """Write the epoch's changes. Returns the name of the new list, which takes effect when a manifest names it."""
        at = scope.epoch.key
        delta = write_delta(self.store, changes, at, scope.subtask, scope.parallelism)
        remember(delta.file, changes)
        chain = replace(self.chain, links=(*self.chain.links, Link(at, (delta,))))
        if len(chain.links) > MOST_DELTAS:
            chain = self._compacted(scope, chain)
        parts = [_Part(branch=key.branch, epoch=key.epoch, delta=delta) for key, delta in _deltas(chain)]
        name = f"{at.epoch:010}-{uuid4().hex}"
        self.store.write(_path(name), _Held(parts=tuple(parts)).model_dump_json().encode())
        return name

    def _compacted(self, scope: StateTaskScope, chain: Chain) -> Chain:
        """Write all rows as one delta, and remove files that neither this epoch nor its parent needs."""
        at = scope.epoch.key
        rows = merged(self.store, self.table, chain, range(scope.max_parallelism))
        changes = rows.append_column("_op", pa.repeat(pa.scalar(PUT), rows.num_rows))
        everything = write_delta(self.store, sort_changes(self.table, changes), at, scope.subtask, scope.parallelism)
        needed = {delta.file.path for _, delta in _deltas(self.chain)}
        _remove(self.store, at.epoch, needed | {_path(self.name)})
        return replace(chain, links=(Link(at, (everything,)),))


def cached_table(cache_directory: str, store: SnapshotStore, scope: StateTaskScope, table: StateTable) -> CachedTable:
    """Return the subtask's local rows of a non-durable table; empty if a file is missing."""
    chain = scope.chains[table.id]
    alone = replace(scope, tables=(table,), chains={table.id: chain})
    folder = boot_folder(Path(cache_directory) / "undurable") / cache_identity(store, alone) / f"{scope.subtask:05}"
    here, before = UnsyncedStore(str(folder)), chain.cached
    if before is None or not before.has_entries:
        return _empty(table, here, scope, lost=False)
    name = before.of(scope.epoch.branch, scope.parallelism, scope.subtask)
    if not name:
        # A subtask that has held nothing loses nothing, unless keys come to it that others have held.
        moved = (before.branch, before.parallelism) != (scope.epoch.branch, scope.parallelism)
        return _empty(table, here, scope, lost=moved)
    links = _links(here, name) if _NAME.fullmatch(name) else None
    if links is None:
        return _empty(table, here, scope, lost=True)
    return CachedTable(table, here, name, Chain(None, (), links, chain.clock), False)


def _empty(table: StateTable, store: UnsyncedStore, scope: StateTaskScope, lost: bool) -> CachedTable:
    _remove(store, scope.epoch.key.epoch, set())
    return CachedTable(table, store, "", Chain(None, (), (), scope.chains[table.id].clock), lost)


def _links(store: UnsyncedStore, name: str) -> tuple[Link, ...] | None:
    """Return the links; ``None`` if a file is missing."""
    try:
        parts = _Held.model_validate_json(store.read(_path(name))).parts
        if any(store.size(part.delta.file.path) != part.delta.file.bytes for part in parts):
            return None
    except (FileMissing, ValidationError):
        return None
    return tuple(Link(EpochKey(part.branch, part.epoch), (part.delta,)) for part in parts)


def _deltas(chain: Chain) -> list[tuple[EpochKey, DeltaFile]]:
    return [(link.key, delta) for link in chain.links for delta in link.deltas]


def _remove(store: UnsyncedStore, epoch: int, needed: Collection[str]) -> None:
    """Delete files of earlier epochs; other copies of the task may still run in this one. Leftover files do no harm."""
    with suppress(SnapshotError, OSError):
        for path in store.list(""):
            if path not in needed and _epoch_of(path) < epoch:
                store.delete(path)


def _path(name: str) -> str:
    return f"held/{name}.json"


def _epoch_of(path: str) -> int:
    """The epoch in which a file was written."""
    parts = path.split("/")
    number = parts[-1].lstrip(".").partition("-")[0] if parts[0] == "held" else parts[-2]
    return int(number) if number.isdigit() else 0
