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
from epochal.snapshots.compaction import (
    CompactionPolicy,
    RangeJob,
    bytes_of_bases,
    bytes_of_deltas,
    discard,
    jobs_of,
    write_bases,
)
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 3600.0
"""Pauses after a failure. With a full store, an immediate retry would fail again."""

BESIDE_BYTES = 1 << 19
"""Minimum size of the files for a separate process; for less, starting the process takes longer than the work."""

RangeWriter = Callable[[Sequence[RangeJob]], Iterator[BaseFile]]


@dataclass
class Compaction:
    """Compaction of one attempt, considered after each published epoch. Without ``background`` it runs in the call.

    ``on_spark`` creates the writer for large state; ``beside`` is the writer for state that is not small; small state
    is written in the driver.
    """

    store: SnapshotStore
    position: Position
    bases: PendingBases
    current: CurrentProgram
    background: BackgroundWorker | None = None
    on_spark: Callable[[Configuration], RangeWriter] | None = None
    beside: RangeWriter | None = None
    clock: Callable[[], float] = time.monotonic
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
        jobs = [job for table in tables for job in jobs_of(table, chains[table.id], manifest.max_parallelism)]
        self._begin(lambda: self._write(epoch, jobs))

    def finish(self) -> None:
        """Remove files that no manifest names, at an orderly end of the attempt."""
        if self.background is not None and not self.background.stop():
            log.warning("E7 retain: a compaction is still running; garbage collection removes its files")
            return
        self.bases.discard(self.store, self.position.chains.values())

    @property
    def _policy(self) -> CompactionPolicy:
        configuration = self.current.program.configuration
        return CompactionPolicy(
            configuration.compact_after_epochs, configuration.compact_after_share, configuration.compact_after_bytes
        )

    def _begin(self, work: Work) -> None:
        if self.background is not None:
            self.background.begin(work)
        else:
            work()

    def _write(self, epoch: int, jobs: Sequence[RangeJob]) -> None:
        chains = list({job.table.id: job.chain for job in jobs}.values())
        written: list[BaseFile] = []
        started = self.clock()
        try:
            for base in self._writer(chains)(jobs):
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
        new = {base.file.path for base in written} - {base.file.path for chain in chains for base in chain.bases}
        log.info(
            "E7 retain: %d bases at epoch %s, %d of them new, in %.1f s",
            len(written),
            chains[0].at,
            len(new),
            seconds,
        )
        points.E7_BASES_WRITTEN.hit(epoch)
        self.bases.offer(tuple(written))

    def _writer(self, chains: Sequence[Chain]) -> RangeWriter:
        configuration, size = self.current.program.configuration, bytes_of_bases(chains) + bytes_of_deltas(chains)
        if self.on_spark is not None and size >= configuration.compact_on_spark_bytes:
            return self.on_spark(configuration)
        if self.beside is not None and size >= BESIDE_BYTES:
            return self.beside
        return lambda jobs: write_bases(self.store, jobs)

    def _request_checkpoints(self) -> None:
        """Without state no base is written, and recovery would walk back to the first epoch."""
        if self._published % self.current.program.configuration.compact_after_epochs == 0:
            self.bases.want_checkpoint()
        self._published += 1
