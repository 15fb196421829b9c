"""E7: new bases for chains that have become long or large, written in parallel with later epochs.

No epoch waits for a base. A base takes effect when a manifest names it. A compaction that fails, or that the end of the
attempt interrupts, removes its files; after a crash, R4 or garbage collection removes them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from epochal.background.worker import BackgroundWorker, Work
from epochal.contracts.configuration import Configuration
from epochal.engine import points
from epochal.engine.meter import Meter
from epochal.engine.position import PendingBases, Position
from epochal.engine.program import CurrentProgram
from epochal.errors import EpochalError
from epochal.snapshots.chain import Chain
from epochal.snapshots.compaction import CompactionJobs, MergeJob, discard, jobs_of, merge_runs
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.merge_policy import CELL_SIZES, CellSizes, CompactionPolicy, bytes_of_deltas
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 3600.0
"""Pauses after a failure. With a full store, an immediate retry would fail again."""

BESIDE_BYTES = 1 << 19
"""Minimum size of the files for a separate process; for less, starting the process takes longer than the work."""

Merging = Callable[[Sequence[MergeJob]], Iterator[BaseFile]]


@dataclass
class Compaction:
    """Compaction of one attempt, considered after each published epoch. Without ``background`` it runs in the call.

    ``on_spark`` merges large files on executors; ``beside`` merges others that are not small; small ones are merged in
    the driver.
    """

    store: SnapshotStore
    position: Position
    bases: PendingBases
    current: CurrentProgram
    background: BackgroundWorker | None = None
    on_spark: Callable[[Configuration], Merging] | None = None
    beside: Merging | None = None
    clock: Callable[[], float] = time.monotonic
    sizes: CellSizes = CELL_SIZES
    meter: Meter = field(default_factory=Meter)
    _not_before: float = field(default=0.0, init=False)
    _pause: float = field(default=FIRST_PAUSE_SECONDS, init=False)
    _published: int = field(default=0, init=False)

    def consider(self, epoch: int) -> None:
        """Write bases if they are due, no compaction is running, and no bases wait for a manifest."""
        chains = {table: chain for table, chain in self.position.chains.items() if chain.cached is None}
        head = self.position.head
        if not chains:
            self._request_checkpoints()
            return
        if head is None or self.bases.take() or self.clock() < self._not_before or not self._policy.is_due(chains):
            return
        manifest = self.store.read_manifest(head)
        tables = [table for table in manifest.tables if table.id in chains]
        # The epoch loop runs concurrently: skip chains and a manifest of different epochs.
        if not tables or any(chains[table.id].at != manifest.key for table in tables):
            return
        plans = [
            jobs_of(
                table,
                chains[table.id],
                manifest.parallelism_of(table.operator),
                manifest.max_parallelism,
                self.sizes,
            )
            for table in tables
        ]
        self._begin(lambda: self._write(epoch, [chains[table.id] for table in tables], plans))

    def finish(self) -> None:
        """Remove files that no manifest names, at an orderly end of the attempt."""
        if self.background is not None and not self.background.stop():
            log.warning("E7 retain: a compaction is still running; garbage collection removes its files")
            return
        self.bases.discard(self.store, self.position.chains.values())

    @property
    def _policy(self) -> CompactionPolicy:
        configuration = self.current.program.configuration
        return CompactionPolicy(configuration.compact_after_epochs, configuration.compact_after_bytes)

    def _begin(self, work: Work) -> None:
        if self.background is not None:
            self.background.begin(work)
        else:
            work()

    def _write(self, epoch: int, chains: Sequence[Chain], plans: Sequence[CompactionJobs]) -> None:
        jobs = [job for plan in plans for job in plan.jobs]
        written: list[BaseFile] = []
        started = self.clock()
        try:
            for base in self._merging(chains, jobs)(jobs):
                written.append(base)
                points.E7_BASE_WRITTEN.hit(epoch)
                if self.background is not None and self.background.stopping:
                    discard(self.store, written, chains)
                    return
        except EpochalError:
            discard(self.store, written, chains)
            self._not_before, self._pause = self.clock() + self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            self.meter.compacted(None)
            raise
        self._pause = FIRST_PAUSE_SECONDS
        seconds = self.clock() - started
        self.meter.compacted(seconds)
        bases = (*(base for plan in plans for base in plan.kept), *written)
        new = {base.file.path for base in written} - {base.file.path for chain in chains for base in chain.bases}
        log.info(
            "E7 retain: %d runs at epoch %s, %d of them new, in %.1f s", len(bases), chains[0].at, len(new), seconds
        )
        points.E7_BASES_WRITTEN.hit(epoch)
        self.bases.offer(bases)

    def _merging(self, chains: Sequence[Chain], jobs: Sequence[MergeJob]) -> Merging:
        configuration = self.current.program.configuration
        size = bytes_of_deltas(chains) + sum(job.merge.bytes for job in jobs)
        if self.on_spark is not None and size >= configuration.compact_on_spark_bytes:
            return self.on_spark(configuration)
        if self.beside is not None and size >= BESIDE_BYTES:
            return self.beside
        return lambda jobs: merge_runs(self.store, jobs)

    def _request_checkpoints(self) -> None:
        """Without state no base is written, and recovery would walk back to the first epoch."""
        if self._published % self.current.program.configuration.compact_after_epochs == 0:
            self.bases.want_checkpoint()
        self._published += 1
