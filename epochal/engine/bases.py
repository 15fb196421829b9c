"""Bases on their way into a manifest: written by E7 in the background, named by the next epoch's E4."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from epochal.snapshots import compaction
from epochal.snapshots.chain import Chain
from epochal.snapshots.manifest import BaseFile, Manifest
from epochal.snapshots.store import SnapshotStore


@dataclass
class PendingBases:
    """Hands the bases that the background wrote over to the coordinator; an aborted epoch leaves them for the next.

    Beside bases a manifest has the sources' checkpoints, which end the walk of a recovery. An application without
    state tables has no bases, and asks for checkpoints alone.
    """

    _bases: tuple[BaseFile, ...] = ()
    _checkpoint_requested: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, bases: tuple[BaseFile, ...]) -> None:
        with self._lock:
            self._bases = bases

    def take(self) -> tuple[BaseFile, ...]:
        """The bases to be named by the manifest under way; empty when there are none."""
        with self._lock:
            return self._bases

    def want_checkpoint(self) -> None:
        """The next manifest shall have the sources' checkpoints, also without bases."""
        with self._lock:
            self._checkpoint_requested = True

    @property
    def checkpoint_requested(self) -> bool:
        with self._lock:
            return self._checkpoint_requested

    def discard(self, store: SnapshotStore, chains: Iterable[Chain]) -> None:
        """Remove them after an orderly end: no manifest names them then. After any other R4 does it, which can tell."""
        compaction.discard(store, self.take(), chains)

    def published(self, manifest: Manifest) -> None:
        """The manifest is decided: its bases need not be named again."""
        with self._lock:
            if manifest.bases and manifest.bases == self._bases:
                self._bases = ()
            if manifest.source_checkpoints:
                self._checkpoint_requested = False
