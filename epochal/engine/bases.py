"""Bases on their way into a manifest: written by E7 in the background, named by the next epoch's E4."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from epochal.errors import SnapshotError
from epochal.snapshots.manifest import BaseFile, Manifest
from epochal.snapshots.store import SnapshotStore


@dataclass
class PendingBases:
    """Hands the bases that the background wrote over to the coordinator; an aborted epoch leaves them for the next."""

    _bases: tuple[BaseFile, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, bases: tuple[BaseFile, ...]) -> None:
        with self._lock:
            self._bases = bases

    def take(self) -> tuple[BaseFile, ...]:
        """The bases to be named by the manifest under way; empty when there are none."""
        with self._lock:
            return self._bases

    def discard(self, store: SnapshotStore) -> None:
        """Remove them after an orderly end: no manifest names them then. After any other R4 does it, which can tell."""
        for base in self.take():
            with suppress(SnapshotError):
                store.delete(base.file.path)

    def published(self, manifest: Manifest) -> None:
        """The manifest is decided: its bases need not be named again."""
        with self._lock:
            if manifest.bases and manifest.bases == self._bases:
                self._bases = ()
