"""Common base of the state backends: a write set over views, pre-committed as one delta per changed table.

A backend adds only the source of its views. Its local store is a cache of the published chain: a commit has nothing to
do, and an abort deletes files.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from epochal.backends.boot_folders import cache_name
from epochal.backends.cached_state import CachedTable, cached_table
from epochal.backends.machine_deltas import MachineDeltas, with_machine_deltas
from epochal.backends.recent import remember
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.state import StateBackend, StateTaskScope, StateTransaction, StateView
from epochal.errors import FileCorrupt, FileMissing, SnapshotError
from epochal.faults import declare
from epochal.snapshots import layout
from epochal.snapshots.delta import SortedChanges, select_changes, sort_changes, write_delta
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.packs import is_apart
from epochal.snapshots.storage_errors import storage_errors
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.task_files import TaskFiles
from epochal.state.table import StateTable
from epochal.state.unexpired import unexpired

VIEW_OPENED = declare("T1.view-opened", "a stateful task has its view of the parent epoch")
BEFORE_DELTA = declare("T3.before-delta", "a stateful task is about to write a delta")
DELTA_WRITTEN = declare("T3.delta-written", "a delta is durable, or in the handle, which has not been returned")


class OpenView(StateView):
    """A view that holds resources of a local store until it is closed."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources. Must not raise; may be called again."""


class DeltaTransaction(StateTransaction):
    """The write set of one task attempt."""

    def __init__(
        self,
        store: SnapshotStore,
        scope: StateTaskScope,
        views: Mapping[str, OpenView],
        cached: Mapping[str, CachedTable] | None = None,
        wrote: Callable[[DeltaFile, SortedChanges], None] | None = None,
    ) -> None:
        """``cached``: the state tables that are not durable. ``wrote``: callback for each delta."""
        self._wrote = wrote
        self._store = store
        self._cached = dict(cached or {})
        self._held: dict[str, str] = {}
        self._scope = scope
        self._views = views
        self._tables = {table.id: table for table in scope.tables}
        self._shown = {
            id: unexpired(table, views[id], table.horizon(scope.chains[id].clock)) for id, table in self._tables.items()
        }
        self._changes: dict[str, list[pa.Table]] = {}
        self._written: list[DeltaFile] = []
        self._files = TaskFiles(store)
        self._ended = False

    def view(self, table: str) -> StateView:
        return self._shown[table]

    def stage(self, table: str, changes: pa.Table) -> None:
        selected = select_changes(self._tables[table], changes)
        if selected.num_rows:
            self._changes.setdefault(table, []).append(selected)

    def pre_commit(self) -> Handle:
        if self._ended:
            raise SnapshotError("This transaction has ended: it was pre-committed or discarded. Start another one.")
        try:
            for table in sorted(self._changes):
                self._write(table, pa.concat_tables(self._changes[table], promote_options="permissive"))
        except BaseException:
            self.discard()
            raise
        self._end()
        return Handle(
            owner=self._scope.owner,
            subtask=self._scope.subtask,
            rows=sum(delta.file.rows for delta in self._written),
            bytes=sum(delta.file.bytes for delta in self._written),
            payload={"deltas": [delta.model_dump(mode="json") for delta in self._written], **self._payload()},
            carried=self._files.carried,
        )

    def _payload(self) -> dict[str, Any]:
        if not self._cached:
            return {}
        held = {id: (self._held.get(id, table.name), table.began_empty) for id, table in self._cached.items()}
        return {"cached": held}

    def discard(self) -> None:
        self._end()
        self._written.clear()
        self._files.discard()

    def _write(self, table: str, changes: pa.Table) -> None:
        scope, at = self._scope, self._scope.epoch.key
        with storage_errors(self._store.location(f"{layout.deltas(at)}/{table}-{scope.subtask:05}")):
            BEFORE_DELTA.hit(at.epoch)
        in_order = sort_changes(self._tables[table], changes)
        if table in self._cached:
            self._held[table] = self._cached[table].changed(scope, in_order)
            return
        delta = write_delta(self._files, in_order, at, scope.subtask, scope.parallelism)
        self._written.append(delta)
        remember(delta.file, in_order)
        if isinstance(self._store, MachineDeltas) and delta.file.path in self._files.carried:
            self._store.leave(delta.file, self._files.carried[delta.file.path])
        DELTA_WRITTEN.hit(at.epoch)
        if self._wrote is not None:
            self._wrote(delta, in_order)

    def _end(self) -> None:
        self._ended = True
        self._changes.clear()
        for view in self._views.values():
            view.close()


def _closed_with(opened: ExitStack, views: dict[str, OpenView]) -> dict[str, OpenView]:
    for view in views.values():
        opened.callback(view.close)
    return views


class DeltaBackend(StateBackend):
    """A state backend whose epochs are deltas in the store. The driver writes small ones, which handles carry.

    ``owner`` is the operator; ``cache_directory`` a folder on the executor's machine for the local store, shared by all
    its Python workers, which may be lost or deleted at any time."""

    has_cached_state = True

    def __init__(self, owner: str, store: SnapshotStore, cache_directory: str) -> None:
        self.owner = owner
        self.store = with_machine_deltas(store, cache_directory)
        self.cache_directory = cache_directory

    @property
    def cache_name(self) -> str:
        with storage_errors(self.cache_directory):
            return cache_name(self.cache_directory)

    @abstractmethod
    def open_views(self, scope: StateTaskScope) -> dict[str, OpenView]:
        """T1. Open a stable view of each of the scope's tables, by id, in ``scope.groups`` and at ``scope.view_at``.
        Views may contain expired rows, which the transaction hides. :mod:`epochal.backends.pruning` determines which
        rows a local store need not keep."""

    def wrote(self, scope: StateTaskScope, delta: DeltaFile, changes: SortedChanges) -> None:
        """T3. A delta is complete, but its epoch is undecided: a local store may prepare for it."""

    def start(self, task: TaskScope) -> DeltaTransaction:
        if not isinstance(task, StateTaskScope):
            raise TypeError(f"a state backend starts a StateTaskScope, not a {type(task).__name__}")
        for table in task.tables:
            if task.chains[table.id].at != task.view_at:
                raise SnapshotError(
                    f"The chain of state {table.id!r} ends at {task.chains[table.id].at}, "
                    f"but epoch {task.epoch.key} builds on {task.view_at}."
                )
        with ExitStack() as opened:
            views: dict[str, OpenView] = {}
            cached: dict[str, CachedTable] = {}
            for part in replace(task, tables=tuple(table for table in task.tables if table.durable)).by_groups():
                views |= _closed_with(opened, self.open_views(part))
            for table in task.tables:
                if not table.durable:
                    cached[table.id], found = self._open_cached(task, table)
                    views |= _closed_with(opened, found)
            opened.pop_all()
        transaction = DeltaTransaction(self.store, task, views, cached, partial(self.wrote, task))
        VIEW_OPENED.hit(task.epoch.epoch)
        return transaction

    def _open_cached(self, task: StateTaskScope, table: StateTable) -> tuple[CachedTable, dict[str, OpenView]]:
        held = cached_table(self.cache_directory, self.store, task, table)
        try:
            return held, self._beside(held.store).open_views(held.within(task))
        except (FileMissing, FileCorrupt):
            emptied = held.emptied(task)
            return emptied, self._beside(emptied.store).open_views(emptied.within(task))

    def _beside(self, store: SnapshotStore) -> DeltaBackend:
        """This backend over another store."""
        beside = copy(self)
        beside.store = store
        return beside

    def cached(self, handle: Handle) -> dict[str, tuple[str, bool]]:
        return {id: (str(name), bool(empty)) for id, (name, empty) in handle.payload.get("cached", {}).items()}

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return tuple(DeltaFile.model_validate(delta) for delta in handle.payload["deltas"])

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Do nothing: the manifest names the deltas, and local stores catch up at their next use."""

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._delete(
            delta.file.path for handle in handles for delta in self.deltas(handle) if is_apart(delta.file, handle)
        )

    def recover(self, epoch: EpochScope) -> None:
        """Do nothing: no manifest of this attempt will name the files of an earlier attempt."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        kept = {delta.file.path for handle in keep for delta in self.deltas(handle)}
        folder = layout.deltas(epoch.key)
        found = [path for path in self.store.list(folder) if path not in kept and self._is_mine(path)]
        removed = self._delete(found)
        if not kept:
            self.store.remove_empty_folder(folder)
        return removed

    def _is_mine(self, path: str) -> bool:
        table = layout.table_of_delta(path)
        return table is not None and layout.belongs_to(table, self.owner)

    def _delete(self, paths: Iterable[str]) -> int:
        return sum(self.store.delete(path) for path in paths)
