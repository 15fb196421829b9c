"""E7, retain: sweep what lost tasks left of an epoch, and have bases written when a chain has become long or large.

Old snapshots are not deleted here: expired ones can no longer be read, and the control plane collects their files.
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
"""A task that lost against a copy of itself may still be writing when its epoch is committed and swept."""


def sweep_losers(store: SnapshotStore, participants: Participants, scope: EpochScope, manifest: Manifest) -> None:
    """Remove what tasks of a decided epoch left and its manifest does not name: retries, speculation, reruns."""
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
    """Called once for each published epoch. A failure here is logged and never harms an epoch."""

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
        """The epoch's own losers, then what late tasks of earlier epochs wrote after those were swept."""
        sweep_losers(self.store, self.current.program.participants, epoch.scope, epoch.manifest)
        self._swept_once.append(epoch)
        if len(self._swept_once) > SWEPT_AGAIN_AFTER_EPOCHS:
            earlier = self._swept_once.popleft()
            sweep_losers(self.store, self.current.program.participants, earlier.scope, earlier.manifest)
        for scope in [scope for scope in self.aborted if scope.epoch < epoch.scope.epoch]:
            for backend in self.current.program.participants.backends:
                backend.sweep(scope, ())
            self.aborted.remove(scope)

    def finish(self) -> None:
        """Nothing of what was published can be written any more: sweep what would have been swept again later."""
        try:
            for epoch in self._swept_once:
                sweep_losers(self.store, self.current.program.participants, epoch.scope, epoch.manifest)
        except EpochalError as error:
            log.warning("E7 retain: %s", error)
