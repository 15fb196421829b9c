"""State in the memory of Spark's Python workers: dictionaries of encoded rows.

The fastest backend while state fits. Every worker process keeps what its own tasks have looked at; a task that lands in
another worker restores from base and deltas first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from threading import RLock
from weakref import WeakSet

from epochal.backends.catch_up import Step, steps
from epochal.backends.delta import DeltaBackend, OpenView
from epochal.backends.encoded_view import Bound, EncodedView, FoundRows
from epochal.backends.identity import cache_identity
from epochal.backends.pruning import Pruning, is_due, prunings
from epochal.backends.sorted_keys import SortedKeys
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import StateTaskScope
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
            partitions = {group: cache[group] for group in scope.groups}
            for partition in partitions.values():
                partition.leases.add(lease)
        return {
            table.id: HeapView(
                table, {group: partition.tables[table.id] for group, partition in partitions.items()}, lease
            )
            for table in scope.tables
        }

    def _bring_to_parent(self, scope: StateTaskScope, cache: dict[int, _Partition]) -> None:
        lagging: dict[EpochKey | None, list[int]] = {}
        for group in scope.groups:
            partition = cache.get(group)
            if partition is None:
                partition = cache[group] = _Partition((table.id, _Rows()) for table in scope.tables)
            if partition.mark != scope.view_at:
                lagging.setdefault(partition.mark, []).append(group)
        for mark, behind in lagging.items():
            for group in behind:
                if cache[group].in_use:
                    cache[group] = cache[group].copy()
            for step in steps(self.store, scope, mark, behind):
                for group in behind:
                    partition = cache.pop(group)  # a failure half-way must not leave it behind
                    partition.apply(step, group)
                    cache[group] = partition
            for id, pruning in prunings(scope).items():
                for group in behind:
                    cache[group].tables[id].prune(pruning)


class HeapView(EncodedView):
    """A view over dictionaries that nobody changes while it is open."""

    def __init__(self, table: StateTable, rows: dict[int, _Rows], lease: _Lease) -> None:
        super().__init__(table)
        self._rows = rows
        self._lease = lease

    def values_in(self, group: int, keys: Sequence[bytes]) -> Iterable[bytes | None]:
        return map(self._rows[group].values.get, keys)

    def ranges_in(self, group: int, low: Sequence[Bound], high: Sequence[Bound], limit: int | None) -> FoundRows:
        return self._rows[group].ranges(low, high, limit)

    def close(self) -> None:
        self._lease.held = False


class _Lease:
    """Keeps partitions from being changed while a transaction's views are open; ends with them, also if unclosed."""

    def __init__(self) -> None:
        self.held = True


class _Rows:
    """One key group of one state table. Its keys are in order once a range has been asked for."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._order: SortedKeys | None = None
        self._left = 0
        """Rows that the last look for what has expired left."""

    def copy(self) -> _Rows:
        other = _Rows()
        other.values = dict(self.values)
        other._order = None if self._order is None else self._order.copy()
        other._left = self._left
        return other

    def clear(self) -> None:
        self.values.clear()
        self._order = None
        self._left = 0

    def apply(self, keys: list[bytes], values: list[bytes | None]) -> None:
        if self._order is not None:
            self._order.change(self.values, keys, values)
        deleted = [key for key, value in zip(keys, values, strict=True) if value is None]
        self.values.update(zip(keys, values, strict=True))  # type: ignore[arg-type]  # what is None goes at once
        for key in deleted:
            del self.values[key]

    def prune(self, pruning: Pruning) -> None:
        if pruning.before is not None:
            keys = list(self.ranges([None], [pruning.before], None).keys)
            if keys:
                self.apply(keys, [None] * len(keys))
        elif is_due(len(self.values), self._left):
            expired = pruning.gone(list(self.values.values()))
            keys = [key for key, is_gone in zip(self.values, expired, strict=True) if is_gone]
            self.apply(keys, [None] * len(keys))
            self._left = len(self.values)

    def ranges(self, low: Sequence[Bound], high: Sequence[Bound], limit: int | None) -> FoundRows:
        if self._order is None:
            self._order = SortedKeys(self.values)
        counts, keys = self._order.between(low, high, limit)
        return FoundRows(counts, keys, list(map(self.values.__getitem__, keys)))


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
