"""State in the memory of Spark's Python workers: dictionaries of encoded rows.

The fastest backend while state fits. Every worker process keeps what its own tasks have looked at; a task that lands in
another worker restores from base and deltas first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from threading import RLock
from weakref import WeakSet

from epochal.backends.by_group import look_up
from epochal.backends.catch_up import Step, groups, steps
from epochal.backends.delta import DeltaBackend, OpenView
from epochal.backends.identity import cache_identity
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import KeyGroups, StateTaskScope
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable


class HeapBackend(DeltaBackend):
    """Keeps state in the worker's own memory; ``cache_directory`` is not used."""

    @property
    def kind(self) -> str:
        return "heap"

    def open_views(self, scope: StateTaskScope) -> dict[str, OpenView]:
        lease = _Lease()
        with _lock:
            cache = _caches.setdefault(cache_identity(self.store, scope), {})
            self._bring_to_parent(scope, cache)
            partitions = {group: cache[group] for group in groups(scope)}
            for partition in partitions.values():
                partition.leases.add(lease)
        return {
            table.id: HeapView({group: partition.tables[table.id] for group, partition in partitions.items()}, lease)
            for table in scope.tables
        }

    def _bring_to_parent(self, scope: StateTaskScope, cache: dict[int, _Partition]) -> None:
        lagging: dict[EpochKey | None, list[int]] = {}
        for group in groups(scope):
            partition = cache.get(group)
            if partition is None:
                partition = cache[group] = _Partition((table.id, _Rows(table)) for table in scope.tables)
            if partition.mark != scope.view_at:
                lagging.setdefault(partition.mark, []).append(group)
        for mark, behind in lagging.items():
            for group in behind:
                if cache[group].in_use:
                    cache[group] = cache[group].copy()
            for step in steps(self.store, scope, mark):
                for group in behind:
                    partition = cache.pop(group)  # a failure half-way must not leave it behind
                    partition.apply(step, group)
                    cache[group] = partition


class HeapView(OpenView):
    """A view over dictionaries that nobody changes while it is open."""

    def __init__(self, rows: dict[int, _Rows], lease: _Lease) -> None:
        self._rows = rows
        self._values = {group: of_group.values for group, of_group in rows.items()}
        self._lease = lease

    def get_many(self, groups: KeyGroups, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._values
        return look_up(groups, keys, lambda group, of_group: map(values[group].get, of_group))

    def scan(self, group: int, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return self._rows[group].scan(prefix)

    def close(self) -> None:
        self._lease.held = False


class _Lease:
    """Keeps partitions from being changed while a transaction's views are open; ends with them, also if unclosed."""

    def __init__(self) -> None:
        self.held = True


class _Rows:
    """One key group of one state table; of list and map state also the full keys of each operator key."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._key_columns = len(table.key)
        self._codec = KeyCodec(table.key_schema) if table.sub_key else None
        self.values: dict[bytes, bytes] = {}
        self._entries: dict[bytes, set[bytes]] = {}

    def copy(self) -> _Rows:
        other = _Rows(self._table)
        other.values = dict(self.values)
        other._entries = {prefix: set(keys) for prefix, keys in self._entries.items()}
        return other

    def clear(self) -> None:
        self.values.clear()
        self._entries.clear()

    def apply(self, keys: list[bytes], values: list[bytes | None]) -> None:
        deleted = [key for key, value in zip(keys, values, strict=True) if value is None]
        self.values.update(zip(keys, values, strict=True))  # type: ignore[arg-type]  # what is None goes at once
        for key in deleted:
            del self.values[key]
        if self._codec is not None:
            self._index(keys, deleted, self._codec)

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        owner = self._codec.leading(prefix, self._key_columns) if self._codec is not None else None
        candidates: Iterable[bytes] = self.values if owner is None else self._entries.get(owner, ())
        return [(key, self.values[key]) for key in sorted(key for key in candidates if key.startswith(prefix))]

    def _index(self, keys: list[bytes], deleted: list[bytes], codec: KeyCodec) -> None:
        for key in keys:
            self._entries.setdefault(codec.leading(key, self._key_columns) or key, set()).add(key)
        for key in deleted:
            owner = codec.leading(key, self._key_columns) or key
            self._entries[owner].discard(key)
            if not self._entries[owner]:
                del self._entries[owner]


class _Partition:
    """One key group of all state tables of an operator, at one epoch; ``None`` before the first."""

    def __init__(self, tables: Iterable[tuple[str, _Rows]]) -> None:
        self.tables = dict(tables)
        self.mark: EpochKey | None = None
        self.leases: WeakSet[_Lease] = WeakSet()

    @property
    def in_use(self) -> bool:
        return any(lease.held for lease in self.leases)

    def copy(self) -> _Partition:
        other = _Partition((id, rows.copy()) for id, rows in self.tables.items())
        other.mark = self.mark
        return other

    def apply(self, step: Step, group: int) -> None:
        for id, rows in self.tables.items():
            if step.afresh:
                rows.clear()
            for keys, values in step.of_group(id, group):
                rows.apply(keys, values)
        self.mark = step.key


_caches: dict[str, dict[int, _Partition]] = {}
_lock = RLock()


def forget() -> None:
    """Drop everything this process keeps, as its end would: a forked worker begins afresh."""
    global _lock
    _lock = RLock()
    _caches.clear()


os.register_at_fork(after_in_child=forget)
