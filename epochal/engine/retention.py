"""E7, retain: sweep files of lost runs of tasks, and start a compaction when a chain has become long or large.

An epoch is swept, which lists its files, only if Spark has repeated a task or a stage; files that remain nevertheless
are left to the control plane's collection, which also deletes the files of expired snapshots.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

from epochal.contracts.identity import EpochScope
from epochal.engine import points
from epochal.engine.commits import PreparedEpoch
from epochal.engine.compaction import Compaction
from epochal.engine.job import Participants
from epochal.engine.program import CurrentProgram
from epochal.errors import EpochalError
from epochal.snapshots import layout
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger(__name__)

SWEPT_AGAIN_AFTER_EPOCHS = 2
"""A duplicate of a task may still write when its epoch is committed and swept."""


def sweep_losers(store: SnapshotStore, participants: Participants, scope: EpochScope, manifest: Manifest) -> None:
    """Remove files of a decided epoch that its manifest does not name: those of retried and speculative tasks."""
    named = {delta.file.path for delta in manifest.deltas}
    lost = [path for path in store.list(layout.deltas(scope.key)) if path not in named]
    for path in lost:
        store.delete(path)
    removed = len(lost)
    for name, backend in participants.sinks.items():
        removed += backend.sweep(scope, manifest.sinks[name].handles if name in manifest.sinks else ())
    for name, tail in participants.loops.items():
        removed += tail.sweep_beside(scope, manifest.loops[name].files if name in manifest.loops else ())
    if removed:
        log.info("E7 retain: epoch %s: %d files of lost tasks removed", scope.key, removed)


@dataclass
class Retention:
    """E7 of one attempt, called once for each published epoch. Failures are logged and do not affect epochs."""

    store: SnapshotStore
    current: CurrentProgram
    compaction: Compaction
    aborted: list[EpochScope] = field(default_factory=list)
    _swept_once: deque[PreparedEpoch] = field(default_factory=deque)

    def __call__(self, epoch: PreparedEpoch) -> None:
        try:
            self._sweep(epoch)
            points.E7_SWEPT.hit(epoch.scope.epoch)
            self.compaction.consider(epoch.scope.epoch)
        except EpochalError as error:
            log.warning("E7 retain: epoch %s: %s", epoch.scope.key, error)

    def _sweep(self, epoch: PreparedEpoch) -> None:
        """Sweep the epoch if runs of its tasks may have been lost, then earlier such epochs again, whose late tasks may
        have written since."""
        while self._swept_once and self._swept_once[0].scope.epoch + SWEPT_AGAIN_AFTER_EPOCHS <= epoch.scope.epoch:
            earlier = self._swept_once.popleft()
            sweep_losers(self.store, self.current.program.participants, earlier.scope, earlier.manifest)
        if epoch.repeated():
            sweep_losers(self.store, self.current.program.participants, epoch.scope, epoch.manifest)
            self._swept_once.append(epoch)
        for scope in [scope for scope in self.aborted if scope.epoch < epoch.scope.epoch]:
            for backend in self.current.program.participants.backends:
                backend.sweep(scope, ())
            self.aborted.remove(scope)

    def finish(self) -> None:
        """Sweep the last epochs again, at the end of the attempt, when no task can write any more."""
        try:
            for epoch in self._swept_once:
                sweep_losers(self.store, self.current.program.participants, epoch.scope, epoch.manifest)
        except EpochalError as error:
            log.warning("E7 retain: %s", error)
