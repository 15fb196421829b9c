"""E7: new bases for a chain that has become long or large, written beside the epochs that go on.

Nobody waits for a base. It counts from the moment a manifest names it, and a compaction that fails, or is cut short by
the attempt's end, leaves no file: what a crash leaves is swept by R4 or by garbage collection.
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
"""After a failure (the store is full): trying again at once would only fill it more."""

BESIDE_BYTES = 1 << 19
"""Of files. To start a process for less takes longer than the work."""

RangeWriter = Callable[[Sequence[RangeJob]], Iterator[BaseFile]]


@dataclass
class Compaction:
    """Considered once after each published epoch. Without a ``background`` the work is done in the call itself.

    ``on_spark`` makes the writer for large state, ``beside`` is that of state which is not small; what has none is
    written in the driver.
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
        """Write bases when they are due, none are under way, and none wait for a manifest."""
        chains = {table: chain for table, chain in self.position.chains.items() if chain.cached is None}
        head = self.position.head
        if not chains:
            self._ask_for_checkpoints()
            return
        if head is None or self.bases.take() or self.clock() < self._not_before or not self._policy.is_due(chains):
            return
        manifest = self.store.read_manifest(head)
        tables = [table for table in manifest.tables if table.id in chains]
        # The epoch loop goes on meanwhile: what belongs to two epochs is left for the next time.
        if not tables or any(chains[table.id].at != manifest.key for table in tables):
            return
        jobs = [job for table in tables for job in jobs_of(table, chains[table.id], manifest.max_parallelism)]
        self._begin(lambda: self._write(epoch, jobs))

    def finish(self) -> None:
        """The attempt ends in order: nothing stays that no manifest names."""
        if self.background is not None and not self.background.stop():
            log.warning("E7 retain: a compaction is still under way; its files are left to garbage collection")
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
        anew = {base.file.path for base in written} - {base.file.path for chain in chains for base in chain.bases}
        log.info(
            "E7 retain: %d bases at epoch %s, %d of them written anew in %.1f s",
            len(written),
            chains[0].at,
            len(anew),
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

    def _ask_for_checkpoints(self) -> None:
        """Without state there are no bases, and recovery would walk back to the first epoch."""
        if self._published % self.current.program.configuration.compact_after_epochs == 0:
            self.bases.want_checkpoint()
        self._published += 1
