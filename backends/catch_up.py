"""Steps that bring a local store to the parent epoch: the base, or only the latest deltas.

A local store holds, per key group, the rows of all the operator's state tables, marked with one epoch. The steps follow
from its mark: one for the base when it must be rebuilt, and one for each later link of the chain. After each step the
store is at that step's epoch, and may be marked so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from epochal.backends.recent import EncodedChanges, changes_of, encoded, is_remembered
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import StateTaskScope
from epochal.snapshots.base_files import read_groups
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import SortedChanges
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.read_ahead import read_ahead
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable


class Bases:
    """A state table's rows at the last bases, of some key groups. Reads the runs of a cell when its rows are needed,
    and caches only those of the latest one, since a store may exceed the worker's memory."""

    def __init__(self, store: SnapshotStore, chain: Chain, table: StateTable, groups: Sequence[int]) -> None:
        self._store = store
        self.runs = chain.bases
        self._table = table
        self._groups = np.array(groups, np.int32)
        self._cell: range | None = None
        self._of_cell: list[EncodedChanges] = []

    def of_group(self, group: int) -> Iterator[EncodedChanges]:
        """The runs that can hold rows of a key group, oldest first. Raises ``FileMissing``, ``FileCorrupt``."""
        if self._cell is None or group not in self._cell:
            self._of_cell.clear()  # frees the memory of the previous cell before the next is read
            runs = [run for run in self.runs if group in run.groups]
            self._cell = runs[0].groups if runs else None
            for run in runs:
                rows = read_groups(self._store, self._table, run, self._groups)
                self._of_cell.append(encoded(SortedChanges.of(self._table, rows)))
        yield from self._of_cell


@dataclass(frozen=True)
class Step:
    """``changes`` or ``bases``, by state table; ``afresh``: the store is emptied first. Afterwards it is at ``key``."""

    key: EpochKey | None
    afresh: bool
    changes: Mapping[str, tuple[EncodedChanges, ...]] = field(default_factory=dict)
    bases: Mapping[str, Bases] = field(default_factory=dict)

    def by_cell(self, groups: Iterable[int]) -> Iterable[int]:
        """Key groups in an order in which those of a cell of the largest state table follow each other."""
        runs = [run for bases in self.bases.values() for run in bases.runs]
        if not runs:
            return groups
        step = max(runs, key=lambda run: run.file.bytes).step
        return sorted(groups, key=lambda group: (group % step, group))

    def of_group(self, table: str, group: int) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """Keys, ascending, and values of one key group, the newest last; a value is ``None`` if the key is deleted.

        Call it for key groups in the order of :meth:`by_cell`: the runs of one cell are in memory at a time.
        """
        for changes in self.bases[table].of_group(group) if table in self.bases else self.changes.get(table, ()):
            first, end = np.searchsorted(changes.groups, [group, group + 1]).tolist()
            if first < end:
                yield changes.keys[first:end], changes.values[first:end]


def steps(store: SnapshotStore, scope: StateTaskScope, mark: EpochKey | None, behind: Sequence[int]) -> Iterator[Step]:
    """Yield the steps from a mark to ``scope.view_at``, for the key groups ``behind``, ascending. Steps are read one
    by one; none if the mark is already there."""
    any_chain = next(iter(scope.chains.values()))
    missing = any_chain.after(mark)
    if missing is None:
        yield Step(any_chain.base_at, True, bases=_bases(store, scope, behind))
        missing = any_chain.links
    first = len(any_chain.links) - len(missing)
    deltas = _files(scope, first, behind)
    store = read_ahead(store, (delta.file for delta in deltas if not is_remembered(delta.file)))
    for position in range(first, len(any_chain.links)):
        changes = {table.id: _deltas(store, scope, table, position, behind) for table in scope.tables}
        yield Step(any_chain.links[position].key, False, changes)


def _bases(store: SnapshotStore, scope: StateTaskScope, behind: Sequence[int]) -> Mapping[str, Bases]:
    return {table.id: Bases(store, scope.chains[table.id], table, behind) for table in scope.tables}


def _files(scope: StateTaskScope, first: int, behind: Sequence[int]) -> Iterator[DeltaFile]:
    """The deltas of the steps after the bases, in the order in which they are read."""
    for position in range(first, len(next(iter(scope.chains.values())).links)):
        for table in scope.tables:
            for delta in scope.chains[table.id].links[position].deltas:
                if can_hold(delta, scope, behind):
                    yield delta


def _deltas(
    store: SnapshotStore, scope: StateTaskScope, table: StateTable, link: int, behind: Sequence[int]
) -> tuple[EncodedChanges, ...]:
    deltas = scope.chains[table.id].links[link].deltas
    return tuple(changes_of(store, table, delta) for delta in deltas if can_hold(delta, scope, behind))


def can_hold(delta: DeltaFile, scope: StateTaskScope, groups: Sequence[int]) -> bool:
    """Return whether a delta may have rows of any of these key groups, which the scope reads."""
    if delta.parallelism == scope.groups.step:
        return delta.subtask == scope.groups.start
    return any(group % delta.parallelism == delta.subtask for group in groups)
