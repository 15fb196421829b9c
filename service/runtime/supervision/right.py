"""The right to supervise: the lock of the data folder first, then the heartbeat in the catalog."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from epochal.errors import Conflict, EpochalError
from epochal.service.domain.ports import Executions, SupervisedBy
from epochal.service.domain.supervision.settings import SupervisionSettings
from epochal.service.runtime.supervision.lock import SupervisionLock

log = logging.getLogger("epochal.supervision")

_POLL_SECONDS = 0.25


class SupervisedElsewhere(Conflict):
    """Another control plane supervises this catalog from another data folder."""

    slug = "supervised-elsewhere"


class SupervisionRight:
    """Of all control planes on one catalog one supervises: two would take each other's drivers for lost.

    On one data folder the second waits for the lock, and answers requests meanwhile. With another data folder it may
    be on another machine, where no lock is seen: it waits for the end of the first one's heartbeats, and is refused if
    they go on.
    """

    def __init__(self, data: Path, executions: Executions, settings: SupervisionSettings) -> None:
        self._data = data
        self._executions = executions
        self._settings = settings
        self._lock = SupervisionLock(data / "supervisor.lock")
        self._sent_at: float | None = None
        self._standing_by = False

    def claim(self) -> None:
        """At the start. Raises ``SupervisedElsewhere`` when another data folder's heartbeats do not end in time."""
        if not self._lock.acquire():
            self._stand_by(f"another control plane supervises with the data folder {self._data}; standing by")
            return
        try:
            self._wait_for_others()
        except EpochalError:
            self._lock.release()
            raise

    def held(self) -> bool:
        """Whether this process supervises now; keeps the heartbeat fresh. Raises ``CatalogUnavailable``."""
        if not self._lock.acquire():
            self._stand_by(f"another control plane supervises with the data folder {self._data}; standing by")
            return False
        if self._sent_at is not None and time.monotonic() - self._sent_at < self._settings.heartbeat_seconds:
            return True
        other = self._send()
        if other is not None:
            self._stand_by(f"{_name(other)} supervises this catalog; standing by")
        return other is None

    def release(self) -> None:
        """The next control plane need not wait. Never raises."""
        if self._sent_at is not None:
            self._sent_at = None
            try:
                self._executions.end_supervision()
            except EpochalError as error:
                log.warning("the heartbeat stays in the catalog until it is too old: %s", error)
        self._lock.release()

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + self._settings.claim_seconds
        while (other := self._send()) is not None:
            if time.monotonic() > deadline:
                raise _elsewhere(other)
            self._stand_by(f"{_name(other)} supervises this catalog; waiting for the end of its heartbeats")
            time.sleep(_POLL_SECONDS)

    def _send(self) -> SupervisedBy | None:
        began = time.monotonic()
        try:
            other = self._executions.supervise(self._lock.folder, self._settings.supervisor_seconds)
        except Conflict:  # another one was first to make the row
            other = self._executions.supervise(self._lock.folder, self._settings.supervisor_seconds)
        if other is None and self._sent_at is None:
            log.info("this control plane supervises")
        self._standing_by &= other is not None
        self._sent_at = began if other is None else None
        return other

    def _stand_by(self, reason: str) -> None:
        if not self._standing_by:
            log.warning("%s", reason)
        self._standing_by = True


def _elsewhere(other: SupervisedBy) -> SupervisedElsewhere:
    return SupervisedElsewhere(
        f"{_name(other)} supervises this catalog, and was heard {other.seconds_ago:.0f} s ago; a second one would take "
        f"its drivers for lost. Stop that one first, or start this one with its data folder ({other.data}) or with a "
        "catalog of its own."
    )


def _name(other: SupervisedBy) -> str:
    return f"The control plane on {other.host} (process {other.process}, data folder {other.data})"
