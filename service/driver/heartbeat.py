"""Heartbeats, from a thread of their own: a long epoch must not look like a dead driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from epochal.contracts.catalog import (
    AS_THE_EXECUTION,
    Catalog,
    Directive,
    DriverStatus,
    EpochCounts,
    EpochRecord,
    EpochTerms,
    Failure,
    ManifestReference,
    RecoveryPoint,
)
from epochal.contracts.identity import EpochKey
from epochal.errors import EpochalError, Fenced, Forbidden, NotFound, Unauthenticated

log = logging.getLogger("epochal.driver")

INTERVAL_SECONDS = 0.5

DISOWNED = (Fenced, Unauthenticated, Forbidden, NotFound)
"""What a driver is told that nobody wants any more: a successor has taken over, or its execution is not there."""


class HeartbeatingCatalog(Catalog):
    """A catalog whose ``heartbeat`` costs the epoch loop nothing: a thread sends the status and keeps the answer.

    The loop's ``heartbeat`` stores the status and returns the directives known. When the thread learns that a later
    attempt has taken over, ``on_fenced`` is called once, from that thread, and every later call raises ``Fenced``.
    """

    def __init__(
        self, catalog: Catalog, on_fenced: Callable[[], None], interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._catalog = catalog
        self._on_fenced = on_fenced
        self._interval_seconds = interval_seconds
        self._status = DriverStatus(phase="starting")
        self._directives: dict[str, Directive] = {}
        self._answered: set[str] = set()
        self._fenced: Fenced | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No further heartbeats. Returns at once: a call under way to an absent control plane is not waited for."""
        self._ended = True
        self._wake.set()

    def _beat(self) -> None:
        while not self._ended:
            self._wake.clear()
            try:
                directives = self._catalog.heartbeat(self._status)
            except DISOWNED as error:
                log.error("fenced: %s", error)
                self._fenced = Fenced(str(error))
                if not self._ended:
                    self._on_fenced()
                return
            except EpochalError as error:
                log.warning("heartbeat refused: %s", error)
            else:
                with self._lock:
                    self._directives = {item.id: item for item in directives if item.id not in self._answered}
            self._wake.wait(self._interval_seconds)

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        self._check()
        if status.phase != self._status.phase:
            self._wake.set()
        self._status = status
        with self._lock:
            return tuple(self._directives.values())

    def complete(self, directive: str, head: ManifestReference | None, failure: Failure | None = None) -> None:
        self._check()
        self._catalog.complete(directive, head, failure)
        with self._lock:
            self._answered.add(directive)
            self._directives.pop(directive, None)

    def begin_attempt(self) -> RecoveryPoint:
        self._check()
        return self._catalog.begin_attempt()

    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        self._check()
        self._catalog.open_epoch(epoch, parent)

    def prepare_epoch(
        self,
        epoch: int,
        parent: EpochKey | None,
        manifest: ManifestReference,
        counts: EpochCounts,
        terms: EpochTerms = AS_THE_EXECUTION,
    ) -> None:
        # Asked even when fenced: only the catalog knows whether an earlier try of the same write has landed.
        self._catalog.prepare_epoch(epoch, parent, manifest, counts, terms)

    def commit_epoch(self, epoch: int) -> None:
        self._check()
        self._catalog.commit_epoch(epoch)

    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        self._check()
        self._catalog.abort_epoch(epoch, failure)

    def epoch(self, epoch: int) -> EpochRecord | None:
        self._check()
        return self._catalog.epoch(epoch)

    def finish(self, failure: Failure | None) -> None:
        self._check()
        self._catalog.finish(failure)

    def _check(self) -> None:
        if self._fenced is not None:
            raise Fenced(str(self._fenced))
