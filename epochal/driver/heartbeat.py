"""Heartbeats from a dedicated thread, so that a driver in a long epoch is not considered dead."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from epochal.background.service import BackgroundService
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
    OptimizeResult,
    RecoveryPoint,
)
from epochal.contracts.identity import EpochKey
from epochal.contracts.measurements import DriverReport
from epochal.engine.meter import Meter
from epochal.errors import CatalogUnavailable, EpochalError, Fenced, Forbidden, NotFound, Unauthenticated

log = logging.getLogger("epochal.driver")


INTERVAL_SECONDS = 2.0


UNHEARD_SECONDS = 0.5
"""Pause after a heartbeat that no control plane answered."""


REPORT_INTERVAL_SECONDS = 5.0


DISOWNED = (Fenced, Unauthenticated, Forbidden, NotFound)
"""Errors that end a driver: a successor has taken over, or its execution does not exist."""


TOLERATED_FAILURES = 5
"""Number of consecutive heartbeats failing for any other reason after which the driver ends; ten seconds of them."""


class HeartbeatsFailed(EpochalError):
    """Too many consecutive heartbeats of a driver have failed. The driver has ended, as it received no directives."""

    slug = "heartbeats-failed"


class HeartbeatingCatalog(Catalog):
    """A catalog whose ``heartbeat`` does not block the epoch loop: a thread sends the status and stores the answer.

    The loop's ``heartbeat`` stores the status and returns the received directives. The thread calls ``on_end`` once
    when the driver must stop: with ``Fenced`` when a later attempt has taken over, with ``HeartbeatsFailed`` when
    ``TOLERATED_FAILURES`` consecutive heartbeats could not be sent or their answers could not be read. Every later call
    raises the same error. While a control plane is unavailable, the thread retries.

    ``listen(after)`` waits for a directive newer than ``after``; a heartbeat then fetches the directive immediately.

    The loop carries out a stop once it has reported that it runs. Before that, the loop cannot: Spark may be starting,
    or a sink may be unavailable. The attempt has no open epoch then, so the thread ends the attempt and calls
    ``on_stopped``.
    """

    def __init__(
        self,
        catalog: Catalog,
        on_end: Callable[[EpochalError], None],
        on_stopped: Callable[[], None] | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
        listen: Callable[[str], str | None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._on_end = on_end
        self._on_stopped = on_stopped
        self._runs = False
        self._interval_seconds = interval_seconds
        self._status = DriverStatus(phase="starting")
        self._directives: dict[str, Directive] = {}
        self._answered: set[str] = set()
        self._ended_by: EpochalError | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._finishing = False
        self._wake = threading.Event()
        self._over = threading.Event()
        self._listen = listen
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._listen is not None:
            threading.Thread(
                target=self._receive_directives, args=(self._listen,), name="directives", daemon=True
            ).start()

    def stop(self) -> None:
        """Stop the heartbeats. Returns immediately, without waiting for a call in progress."""
        self._ended = True
        self._over.set()
        self._wake.set()

    def _receive_directives(self, listen: Callable[[str], str | None]) -> None:
        newest = ""
        while not self._ended and self._ended_by is None:
            try:
                found = listen(newest)
            except EpochalError as error:
                # No control plane answers, or it lacks the call. Heartbeats still deliver directives.
                log.debug("cannot listen for directives: %s", error)
                self._over.wait(self._interval_seconds)
                continue
            if found is not None:
                newest = found
                self._wake.set()

    def _beat(self) -> None:
        failures = 0
        while not self._ended:
            self._wake.clear()
            pause = self._interval_seconds
            try:
                directives = self._catalog.heartbeat(self._status)
            except DISOWNED as error:
                if not self._finishing:  # otherwise the finish call may have succeeded; its own answer decides
                    log.error("fenced: %s", error)
                self._end(Fenced(str(error)))
                return
            except CatalogUnavailable as error:
                log.warning("heartbeat not answered: %s", error)
                pause = min(pause, UNHEARD_SECONDS)
            except Exception as error:
                # Catch every error: without this thread the driver would send no heartbeats and receive no directives.
                failures += 1
                log.exception("heartbeat failed (%d consecutive failures)", failures)
                if failures >= TOLERATED_FAILURES:
                    self._end(
                        HeartbeatsFailed(
                            f"{failures} consecutive heartbeats have failed, so the driver has ended: it receives no "
                            f"directives without them. The last error: {type(error).__name__}: {error}"
                        )
                    )
                    return
            else:
                failures = 0
                stop = any(item.kind == "stop" for item in directives)
                if stop and self._stopped():
                    return
                with self._lock:
                    self._directives = {item.id: item for item in directives if item.id not in self._answered}
            self._wake.wait(pause)

    def _end(self, error: EpochalError) -> None:
        self._ended_by = error
        if not self._ended and not self._finishing:
            self._on_end(error)

    def _stopped(self) -> bool:
        """Carry out a stop if the loop does not run yet, and return true on success.

        Recovery soon continues to the loop, which carries out the stop, unless recovery waits for a sink.
        """
        if self._on_stopped is None or self._runs or self._status.phase not in ("starting", "waiting"):
            return False
        try:
            self._catalog.finish(None)
        except EpochalError as error:
            log.warning("cannot stop yet: %s", error)  # the next heartbeat retries, or is fenced
            return False
        log.info("stopped before it ran")
        self._ended = True
        self._on_stopped()
        return True

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        self._check()
        if status.phase != self._status.phase:
            self._wake.set()
        self._status = status
        self._runs |= status.phase == "running"
        with self._lock:
            return tuple(self._directives.values())

    def report(self, report: DriverReport) -> None:
        self._check()
        self._catalog.report(report)

    def complete(
        self,
        directive: str,
        head: ManifestReference | None,
        failure: Failure | None = None,
        result: OptimizeResult | None = None,
    ) -> None:
        self._check()
        self._catalog.complete(directive, head, failure, result)
        with self._lock:
            self._answered.add(directive)
            self._directives.pop(directive, None)

    def note_progress(self, directive: str, progress: str) -> None:
        self._check()
        self._catalog.note_progress(directive, progress)

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
        # Called even after the end: only the catalog can tell whether an earlier try of the same write succeeded.
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
        self._finishing = True
        try:
            self._catalog.finish(failure)
        except BaseException:
            self._finishing = False
            raise
        self.stop()

    def _check(self) -> None:
        if self._ended_by is not None:
            raise type(self._ended_by)(str(self._ended_by))


class Reports:
    """Sends a report every few seconds and a last one at the end. A lost report is superseded by the next.

    A control plane of an older version does not accept reports; the attempt is unaffected.
    """

    def __init__(self, catalog: Catalog, meter: Meter, interval_seconds: float = REPORT_INTERVAL_SECONDS) -> None:
        self._catalog = catalog
        self._meter = meter
        self._sending = threading.Lock()
        self._service = BackgroundService("reports", self._send, interval_seconds, delay=interval_seconds)

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        """Send the last report. Returns within seconds, even if the report does not arrive."""
        self._service.stop(timeout=0)
        self._send()

    def _send(self) -> None:
        with self._sending:
            try:
                report = self._meter.report()
                self._catalog.report(report)
                self._meter.reported(report)
            except EpochalError as error:
                log.debug("a report was not taken: %s", error)
            except Exception:
                log.exception("cannot create a report")
