"""Compaction: new runs of state tables at the end of their chains, one cell of key groups at a time.

Memory is bounded by one merge and the table's changes. Runs that are not merged are named again and not rewritten.
:mod:`epochal.snapshots.merge_policy` decides when a compaction is due and what it merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotError, StoreUnavailable
from epochal.snapshots import layout
from epochal.snapshots.base_files import columns_of, encoded_base, without_operations
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import read_delta, rows_of_groups
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.merge_policy import CELL_SIZES, CellSizes, Merge, MergePlanner
from epochal.snapshots.merging import after_changes, changes_within, folded, puts_of, rows_by_age
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

FOLDED_ROWS, FOLDED_BYTES = 1 << 20, 64 << 20
"""Maximum size of changes that are read once for all merges; for more, each merge reads its own."""


@dataclass(frozen=True)
class MergeJob:
    """One merge of one state table at the end of ``chain``."""

    table: StateTable
    chain: Chain
    merge: Merge

    @property
    def at(self) -> EpochKey:
        if self.chain.at is None:
            raise ValueError("the chain has no epoch for a base")
        return self.chain.at


@dataclass(frozen=True)
class CompactionJobs:
    """Compaction of one state table. ``kept``: runs that the next bases name again, beside those of the jobs."""

    kept: tuple[BaseFile, ...]
    jobs: tuple[MergeJob, ...]


def jobs_of(
    table: StateTable, chain: Chain, parallelism: int, max_parallelism: int, sizes: CellSizes = CELL_SIZES
) -> CompactionJobs:
    """Plan the compaction of a state table whose subtasks have this parallelism."""
    expires = table.horizon(chain.clock) is not None
    planner = MergePlanner(chain, columns_of(table), expires, parallelism, max_parallelism, sizes)
    plan = planner.plan()
    kept = tuple(_named_again(table, chain, run) for run in plan.kept)
    return CompactionJobs(kept, tuple(MergeJob(table, chain, merge) for merge in plan.merges))


def _named_again(table: StateTable, chain: Chain, run: BaseFile) -> BaseFile:
    return run.model_copy(update={"at": chain.at, "clock": chain.clock if table.expires else None})


def merge_runs(store: SnapshotStore, jobs: Iterable[MergeJob]) -> Iterator[BaseFile]:
    """Run jobs, grouped by state table; each file is durable when it is yielded. Raises ``StorageFull``,
    ``FileMissing``, ``FileCorrupt``."""
    changes: TableChanges | None = None
    for job in jobs:
        if changes is None or (changes.table, changes.chain) != (job.table, job.chain):
            changes = TableChanges(store, job.table, job.chain)
        yield from _merged(store, job, changes.of_groups(job.merge.groups))


def _merged(store: SnapshotStore, job: MergeJob, changes: pa.Table) -> Iterator[BaseFile]:
    """The new runs of a merge; its only input, if that has the same rows; none without changes to a cell that keeps its
    runs."""
    merge = job.merge
    if not changes.num_rows and not merge.inputs and merge.age:
        return
    for groups in merge.outputs:  # each reads its own part of the inputs, so that only one is in memory
        piece = replace(merge, groups=groups, pieces=1)
        rows = run_rows(store, job.table, job.chain, piece, rows_of_groups(changes, groups))
        if not changes.num_rows and _is_only_input(job, rows):
            yield _named_again(job.table, job.chain, merge.inputs[0])
        elif rows.num_rows or not merge.age:
            yield _named_again(job.table, job.chain, write_base(store, job.table, job.at, groups, rows, merge.age))


def _is_only_input(job: MergeJob, rows: pa.Table) -> bool:
    """True if a merge of one run into one has the same rows."""
    if not len(job.merge.inputs) == job.merge.pieces == 1:
        return False
    (only,) = job.merge.inputs
    is_alike = only.columns == columns_of(job.table) and only.groups == job.merge.groups
    return is_alike and only.file.rows == rows.num_rows


def run_rows(store: SnapshotStore, table: StateTable, chain: Chain, merge: Merge, changes: pa.Table) -> pa.Table:
    """Rows of a merge's run. ``changes``: those of the deltas to its key groups, folded."""
    of_runs = rows_by_age(store, table, merge.inputs, merge.groups)
    if merge.age:
        return folded(table, (*of_runs, changes))
    oldest = puts_of(table, next(of_runs, table.delta_schema.empty_table()))
    return after_changes(table, oldest, folded(table, (*of_runs, changes)), chain.clock)


@dataclass
class TableChanges:
    """The last changes of each key in the deltas of a state table's chain."""

    store: SnapshotStore
    table: StateTable
    chain: Chain
    _all: pa.Table | None = field(default=None, repr=False)

    def of_groups(self, groups: range) -> pa.Table:
        """Changes to some key groups, sorted by (key group, key), deletes included."""
        if self._all is None and self._fits():
            everything = (delta for link in self.chain.links for delta in link.deltas)
            self._all = folded(self.table, (read_delta(self.store, self.table, delta) for delta in everything))
        if self._all is not None:
            return rows_of_groups(self._all, groups)
        return folded(self.table, changes_within(self.store, self.table, self.chain, groups))

    def _fits(self) -> bool:
        files = [delta.file for link in self.chain.links for delta in link.deltas]
        return sum(file.rows for file in files) <= FOLDED_ROWS and sum(file.bytes for file in files) <= FOLDED_BYTES


def write_base(
    store: SnapshotStore, table: StateTable, at: EpochKey, groups: range, rows: pa.Table, age: int = 0
) -> BaseFile:
    """Write the rows of some key groups, sorted by (key group, key), as a run. Durable on return; raises
    ``StorageFull``."""
    rows = without_operations(rows)
    encoded = encoded_base(table, at, groups, rows)
    return BaseFile(
        table=table.id,
        at=at,
        first_group=groups.start,
        last_group=groups[-1],
        step=groups.step,
        age=age,
        deletes="_op" in rows.column_names,
        columns=columns_of(table),
        file=store.write_file(layout.base(at, table.id, groups), encoded.data, rows.num_rows),
        index=encoded.index,
    )


def compact(
    store: SnapshotStore,
    table: StateTable,
    chain: Chain,
    max_parallelism: int,
    parallelism: int = 1,
    sizes: CellSizes = CELL_SIZES,
) -> tuple[BaseFile, ...]:
    """Write the bases of a state table at ``chain.at``, at least one run.

    They take effect when a manifest names them together with those of all other state tables at the same epoch.
    """
    plan = jobs_of(table, chain, parallelism, max_parallelism, sizes)
    return (*plan.kept, *merge_runs(store, plan.jobs))


def discard(store: SnapshotStore, bases: Iterable[BaseFile], chains: Iterable[Chain]) -> None:
    """Remove new bases that no manifest will name. Existing bases of the chains stay."""
    kept = {base.file.path for chain in chains for base in chain.bases}
    for base in bases:
        if base.file.path not in kept:
            with suppress(SnapshotError, StoreUnavailable):
                store.delete(base.file.path)
