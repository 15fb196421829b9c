"""Heap state backend: immutable columnar runs, in memory or in files that all Python workers of a machine map.

The delta that an epoch writes becomes the newest run of the next epoch. Runs are merged as their number grows, so a
view reads only a few. Small segments of runs stay in the memory of a worker. Large ones are files: the parts in use
stay in the page cache of the machine, and state may be larger than memory.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import RLock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.boot_folders import boot_folder, cache_identity
from epochal.backends.catch_up import can_hold
from epochal.backends.delta import DeltaBackend, OpenView
from epochal.backends.recent import columns_of, is_remembered
from epochal.backends.runs import lists as runs_lists
from epochal.backends.runs import run_store as runs_shelf
from epochal.backends.runs.hashing import hash_keys
from epochal.backends.runs.lists import Expiry, Lists, Runs, no_expiry, rescaled
from epochal.backends.runs.run import Run
from epochal.backends.runs.run_store import Shelf, folder_name
from epochal.backends.runs.segment import Mask, Segment
from epochal.backends.runs.view import RunsView
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import StateTaskScope
from epochal.snapshots import read_counts
from epochal.snapshots.base_files import read_groups
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import SortedChanges
from epochal.snapshots.manifest import BaseFile, DeltaFile
from epochal.snapshots.merging import by_group, runs_for
from epochal.snapshots.read_ahead import read_ahead
from epochal.snapshots.storage_errors import storage_errors
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import gone
from epochal.state.table import StateTable
from epochal.state.unexpired import first_key

_KNOWN: Final = 256
"""Maximum number of state tables, each of one subtask, whose lists a worker caches."""
_RESTORED_BYTES: Final = 64 << 20
"""Maximum size of base files that are combined into one segment."""
_FAR: Final = 2
"""In epochs. A subtask that is further behind first searches for runs of subtasks of another parallelism."""


class HeapBackend(DeltaBackend):
    """State backend that keeps large runs below ``cache_directory``."""

    @property
    def kind(self) -> str:
        return "heap"

    def open_views(self, scope: StateTaskScope) -> dict[str, OpenView]:
        views: dict[str, OpenView] = {}
        for table in scope.tables:
            caught_up = self._catch_up(scope, table)
            with caught_up.lists.lock:
                runs = caught_up.runs()
            views[table.id] = _HeapView(table, runs, caught_up.salt, caught_up.lists)
        return views

    def wrote(self, scope: StateTaskScope, delta: DeltaFile, changes: SortedChanges) -> None:
        caught_up = self._catch_up(scope, changes.table)
        if (delta.subtask, delta.parallelism) == (caught_up.groups.start, caught_up.groups.step):
            caught_up.lists.make_ahead(delta.file.path, delta.file.rows, partial(caught_up.made_of, delta, changes))

    def _catch_up(self, scope: StateTaskScope, table: StateTable) -> _CatchUp:
        with storage_errors(self.cache_directory):
            boot = boot_folder(Path(self.cache_directory) / "heap")
        salt = int.from_bytes(hashlib.sha256(boot.name.encode()).digest()[:8], "big")
        alone = replace(scope, tables=(table,))
        lists = _lists_of(boot / cache_identity(self.store, alone), alone.groups, table)
        return _CatchUp(self.store, lists, alone, table, salt)


class _HeapView(RunsView):
    """View that starts due merges when it is closed: the worker is idle after a task."""

    def __init__(self, table: StateTable, runs: Runs, salt: int, lists: Lists) -> None:
        super().__init__(table, runs, salt)
        self._lists = lists

    def close(self) -> None:
        self._lists.merge_beside()


class _CatchUp:
    """Brings the runs of one state table to the epoch of a view, from the latest epoch of its chain found locally."""

    def __init__(self, store: SnapshotStore, lists: Lists, scope: StateTaskScope, table: StateTable, salt: int) -> None:
        self._store = store
        self.lists = lists
        self._scope = scope
        self._table = table
        self.salt = salt
        self._chain = scope.chains[table.id]
        self._expiry = _expiry(table, self._chain)

    @property
    def groups(self) -> range:
        return self._scope.groups

    def runs(self) -> Runs:
        begun, links = self._begin()
        far = begun is None or len(self._chain.links) - links > _FAR
        if far and (found := self._rescaled(0 if begun is None else links + 1)) is not None:
            begun, links = found
        runs = self._bases() if begun is None else begun
        every = [delta for link in self._chain.links[links:] for delta in link.deltas]
        deltas = [delta for delta in every if can_hold(delta, self._scope, self.groups)]
        store = read_ahead(self._store, (delta.file for delta in deltas if not is_remembered(delta.file)))
        for delta in deltas:
            runs = self.lists.compacted((Run((self._delta(store, delta),)), *runs), self._expiry)
        self.lists.show(self._chain.at, runs, self._expiry, len(self._chain.links) - links, far)
        return runs

    def _begin(self) -> tuple[Runs | None, int]:
        """Return the runs at the latest epoch of the chain found locally, and the number of links up to it."""
        marks = self._marks
        for look in (self.lists.known_at, self.lists.stored_at):
            for links in range(len(marks) - 1, -1, -1):
                mark = marks[links]
                if mark is not None and (found := look(mark)) is not None:
                    return found, links
        return None, 0

    def _rescaled(self, least: int) -> tuple[Runs, int] | None:
        """Like :meth:`_begin`, from local runs of subtasks of another parallelism; at least ``least`` links."""
        if not self._table.durable:
            return None  # a rescale empties the table
        return rescaled(self.lists, self._marks, least, self._expiry)

    @property
    def _marks(self) -> list[EpochKey | None]:
        return [self._chain.base_at, *(link.key for link in self._chain.links)]

    def _bases(self) -> Runs:
        """Restore bases as runs, newest first: a run for each age, with a segment for each large file."""
        mine = runs_for(self._chain.bases, self.groups)
        mine.sort(key=lambda base: (-base.age, base.deletes, base.first_group))
        runs = []
        for _, alike in groupby(mine, key=lambda base: base.age):
            segments = (self._restored(bases) for bases in _together(alike))
            if present := tuple(segment for segment in segments if len(segment)):
                runs.append(Run(present))
        return tuple(runs)

    def _restored(self, bases: Sequence[BaseFile]) -> Segment:
        """``bases``: files with the same columns and different key groups. The rows keep their order, because a copy in
        the order of hashes takes as long as the rest of the restore."""
        groups = np.array(self.groups, np.int32)
        rows = by_group(pa.concat_tables([read_groups(self._store, self._table, base, groups) for base in bases]))
        paths = "|".join(base.file.path for base in bases)
        return self._segment(SortedChanges.of(self._table, rows), paths, in_order=True)

    def _delta(self, store: SnapshotStore, delta: DeltaFile) -> Segment:
        if (found := self.lists.made_of(delta.file.path, delta.file.rows)) is not None:
            read_counts.count("disk", delta.file.bytes)
            return found
        return self.made_of(delta, columns_of(store, self._table, delta))

    def made_of(self, delta: DeltaFile, changes: SortedChanges) -> Segment:
        """Make a segment of the delta's rows that the subtask reads."""
        if delta.parallelism != self.groups.step:
            mine = np.isin(changes.groups, np.array(self.groups, np.int32))
            mask = pa.array(mine)
            changes = SortedChanges(changes.table, changes.rows.filter(mask), changes.keys.filter(mask))
        return self._segment(changes, delta.file.path, self.lists.in_order)

    def _segment(self, changes: SortedChanges, source: str, in_order: bool) -> Segment:
        values = changes.rows.select(self._table.value_schema.names)
        hashes = hash_keys(changes.keys, self.salt)
        segment = Segment.of(changes.groups, changes.keys, changes.deleted, values, hashes, in_order)
        return self.lists.add(segment, source)


def _together(bases: Iterable[BaseFile]) -> Iterator[list[BaseFile]]:
    """Divide files into parts of limited size whose files have the same columns."""
    part: list[BaseFile] = []
    for base in bases:
        size = sum(each.file.bytes for each in part) + base.file.bytes
        if part and (size > _RESTORED_BYTES or base.deletes != part[-1].deletes):
            yield part
            part = []
        part.append(base)
    if part:
        yield part


def _expiry(table: StateTable, chain: Chain) -> Expiry:
    """Rows that have expired by the epoch of a view and need not be stored."""
    horizon, column = table.horizon(chain.clock), table.expires
    if horizon is None or column is None:
        return no_expiry()

    def expired(segment: Segment) -> Mask:
        if table.time is not None and table.time.name == column.column:
            return np.asarray(pc.less(segment.keys, pa.scalar(first_key(horizon), segment.keys.type)), bool)
        return gone(segment.values.column(column.column), horizon)

    return Expiry(f"expired at {horizon}", expired)


def _lists_of(parent: Path, groups: range, table: StateTable) -> Lists:
    folder = parent / folder_name(groups)
    with _lock:
        if folder not in _lists:
            _lists[folder] = Lists(Shelf(folder), groups, bool(table.sub_key) or table.time is not None)
        _lists.move_to_end(folder)
        while len(_lists) > _KNOWN:
            _lists.popitem(last=False)
        return _lists[folder]


_lists: OrderedDict[Path, Lists] = OrderedDict()
_lock = RLock()


def lists() -> Mapping[Path, Lists]:
    """Lists of this worker, by folder."""
    return _lists


def forget() -> None:
    """Drop all process-local state; a forked worker starts empty."""
    global _lock
    _lock = RLock()
    _lists.clear()
    for module in (runs_lists, runs_shelf):
        module.forget()


os.register_at_fork(after_in_child=forget)
