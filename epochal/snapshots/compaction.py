"""Compaction: new bases of a state table at the end of its chain, one range of key groups at a time.

Memory is bounded by one range and its changes. The file of an unchanged range is named again and not rewritten. The
policy (:meth:`CompactionPolicy.is_due`) weighs the length of a chain, which slows recovery and look-ups of the past,
against the rows that a new base writes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from epochal.contracts.identity import EpochKey
from epochal.errors import SnapshotError, StoreUnavailable
from epochal.snapshots import layout
from epochal.snapshots.base_files import base_schema, encoded_base, required_keys
from epochal.snapshots.chain import Chain
from epochal.snapshots.delta import read_delta, rows_of_groups
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.merging import after_changes, base_rows, changes_within, folded
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable

FEWEST_RANGES = 4
ROWS_PER_RANGE, BYTES_PER_RANGE = 1 << 20, 64 << 20
"""Approximate size of a base's file. A range is merged in memory."""

FOLDED_ROWS, FOLDED_BYTES = 1 << 20, 32 << 20
"""Maximum size of changes that are read once for all ranges; for more, each range reads its own."""


@dataclass(frozen=True)
class CompactionPolicy:
    """Condition for new bases of a chain. Bytes are those of the files; ``epochs`` is the length since the last
    bases."""

    epochs: int = 50
    share: float = 0.5
    least_bytes: int = 16 << 20

    SMALL_SHARE = 0.1
    """Fraction of ``share``. With fewer changes, a large state is not rewritten because of its chain's length .."""
    LONGEST = 10
    """.. until the chain is this many times longer than ``epochs``."""

    def is_due(self, chains: Mapping[str, Chain]) -> bool:
        """True if new bases are due by size (deltas reach ``share`` of the bases and the minimum) or by length (see
        above)."""
        links = max((len(chain.links) for chain in chains.values()), default=0)
        if links < 2:
            return False
        deltas, bases = bytes_of_deltas(chains.values()), bytes_of_bases(chains.values())
        if deltas >= max(self.share * bases, self.least_bytes):
            return True
        changed = deltas >= self.SMALL_SHARE * self.share * bases
        return links >= self.epochs * (1 if changed else self.LONGEST)


@dataclass(frozen=True)
class KeyGroupRange:
    """Key groups from ``first`` to ``last``, both included."""

    first: int
    last: int


def bytes_of_deltas(chains: Iterable[Chain]) -> int:
    """Total size of all deltas since the last bases."""
    return sum(delta.file.bytes for chain in chains for link in chain.links for delta in link.deltas)


def bytes_of_bases(chains: Iterable[Chain]) -> int:
    return sum(base.file.bytes for chain in chains for base in chain.bases)


def rows_of(chain: Chain) -> int:
    """Upper bound of the table's rows: rows of its bases plus all later changes."""
    deltas = sum(delta.file.rows for link in chain.links for delta in link.deltas)
    return deltas + sum(base.file.rows for base in chain.bases)


def ranges_of(chain: Chain, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """Ranges of about equal size. Their number is a power of two, so that it rarely changes while state grows."""
    bytes_there = bytes_of_deltas([chain]) + bytes_of_bases([chain])
    target = max(rows_of(chain) / ROWS_PER_RANGE, bytes_there / BYTES_PER_RANGE)
    number = FEWEST_RANGES
    while number < target:
        number *= 2
    number = min(number, max_parallelism)
    bounds = [index * max_parallelism // number for index in range(number + 1)]
    return tuple(KeyGroupRange(first, end - 1) for first, end in pairwise(bounds))


@dataclass
class TableCompaction:
    """New bases of one state table at ``chain.at``, file by file."""

    store: SnapshotStore
    table: StateTable
    chain: Chain
    _changes: pa.Table | None = field(default=None, repr=False)

    @property
    def at(self) -> EpochKey:
        if self.chain.at is None:
            raise ValueError("the chain has no epoch for a base")
        return self.chain.at

    def base(self, groups: KeyGroupRange, *, always: bool = False) -> BaseFile | None:
        """The base of a range: the existing file if no row has changed or expired, or a new file.

        ``None`` if the range has no rows and ``always`` is false. Raises ``StorageFull``,
        ``FileMissing``, ``FileCorrupt``.
        """
        changes = self._changes_of(groups)
        present = None if changes.num_rows else self._present(groups)
        if present is not None and self.table.horizon(self.chain.clock) is None:
            return present
        rows = base_rows(self.store, self.table, self.chain, groups.first, groups.last)
        rows = after_changes(self.table, rows, changes, self.chain.clock)
        if present is not None and rows.num_rows == present.file.rows:
            return present
        return write_base(self.store, self.table, self.at, groups, rows) if rows.num_rows or always else None

    def _present(self, groups: KeyGroupRange) -> BaseFile | None:
        """Existing file of a range that can be reused, or ``None``."""
        for base in self.chain.bases:
            if (base.first_group, base.last_group) == (groups.first, groups.last) and self._is_as_declared(base):
                return base.model_copy(update={"at": self.at})
        return None

    def _is_as_declared(self, base: BaseFile) -> bool:
        """True if the file has the currently declared columns; the table may have evolved."""
        with self.store.open(base.file, f"state {self.table.id!r} at {base.at}") as source:
            found = required_keys(self.table, pq.read_schema(source).remove_metadata())
        return bool(found.equals(required_keys(self.table, base_schema(self.table))))

    def _changes_of(self, groups: KeyGroupRange) -> pa.Table:
        if self._changes is None and self._fits():
            everything = (delta for link in self.chain.links for delta in link.deltas)
            self._changes = folded(self.table, (read_delta(self.store, self.table, delta) for delta in everything))
        if self._changes is not None:
            return rows_of_groups(self._changes, groups.first, groups.last)
        return folded(self.table, changes_within(self.store, self.table, self.chain, groups.first, groups.last))

    def _fits(self) -> bool:
        files = [delta.file for link in self.chain.links for delta in link.deltas]
        return sum(file.rows for file in files) <= FOLDED_ROWS and sum(file.bytes for file in files) <= FOLDED_BYTES


def write_base(
    store: SnapshotStore, table: StateTable, at: EpochKey, groups: KeyGroupRange, rows: pa.Table
) -> BaseFile:
    """Write the rows of a range, sorted by (key group, key), as a file. Durable on return; raises ``StorageFull``."""
    encoded = encoded_base(table, at, groups.first, groups.last, rows)
    path = layout.base(at, table.id, groups.first, groups.last)
    return BaseFile(
        table=table.id,
        at=at,
        first_group=groups.first,
        last_group=groups.last,
        file=store.write_file(path, encoded.data, rows.num_rows),
        index=encoded.index,
    )


@dataclass(frozen=True)
class RangeJob:
    """One range of one state table. ``always``: write a file even without rows, so that every table has a base."""

    table: StateTable
    chain: Chain
    groups: KeyGroupRange
    always: bool


def jobs_of(table: StateTable, chain: Chain, max_parallelism: int) -> tuple[RangeJob, ...]:
    """All ranges of a state table, in order."""
    ranges = ranges_of(chain, max_parallelism)
    return tuple(RangeJob(table, chain, groups, groups is ranges[-1]) for groups in ranges)


def write_bases(store: SnapshotStore, jobs: Iterable[RangeJob]) -> Iterator[BaseFile]:
    """Run jobs, grouped by state table; each file is durable when it is yielded."""
    compaction: TableCompaction | None = None
    for job in jobs:
        if compaction is None or (compaction.table, compaction.chain) != (job.table, job.chain):
            compaction = TableCompaction(store, job.table, job.chain)
        base = compaction.base(job.groups, always=job.always)
        if base is not None:
            yield base


def compact(store: SnapshotStore, table: StateTable, chain: Chain, max_parallelism: int) -> tuple[BaseFile, ...]:
    """Write the bases of a state table at ``chain.at``, at least one file.

    They take effect when a manifest names them together with those of all other state tables at the same epoch.
    """
    return tuple(write_bases(store, jobs_of(table, chain, max_parallelism)))


def discard(store: SnapshotStore, bases: Iterable[BaseFile], chains: Iterable[Chain]) -> None:
    """Remove new bases that no manifest will name. Existing bases of the chains stay."""
    kept = {base.file.path for chain in chains for base in chain.bases}
    for base in bases:
        if base.file.path not in kept:
            with suppress(SnapshotError, StoreUnavailable):
                store.delete(base.file.path)
