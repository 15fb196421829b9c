"""Leader election among the control planes of a catalog: a dedicated thread that holds one lease."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from epochal.background.locks import FileLock
from epochal.background.service import BackgroundService
from epochal.errors import EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.leases import Leases
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.leases import LEADER, Grant, Holder, Lease, LeaseSettings
from epochal.service.domain.ports import Leading
from epochal.service.domain.settings import Settings
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.machine import Machine, steady_seconds, this_machine

log = logging.getLogger("epochal.leadership")


class LeaseLeadership:
    """The control plane's :class:`~epochal.service.domain.ports.Leadership`.

    ``leases`` has its own connection, so that the lease is renewed even if all other connections are in use.
    """

    def __init__(
        self,
        leases: Leases,
        settings: LeaseSettings | None = None,
        clock: Callable[[], float] = steady_seconds,
        lock: FolderLock | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """``lock``: the lease is requested only if the lock is held. ``close`` is called last."""
        self._leases = leases
        self._settings = settings or LeaseSettings()
        self._clock = clock
        self._lock = lock
        self._close = close
        self._term: int | None = None
        self._acting_until = 0.0
        self._since: datetime | None = None
        self._said: object = None
        self._state = threading.Lock()
        self._service = BackgroundService(
            "leadership", self.step, self._settings.look_seconds, delay=self._settings.look_seconds
        )

    def open(self) -> None:
        """Start. A single control plane leads when this returns."""
        self.step()
        self._service.start()

    def close(self) -> None:
        self._service.stop()
        with self._state:
            term, self._term = self._term, None
        if term is not None:
            try:
                self._leases.release(LEADER, term)
            except EpochalError as error:
                log.warning("cannot release the lease, which will expire: %s", error)
        if self._lock is not None:
            self._lock.release()
        self._close()

    def leading(self) -> Leading | None:
        with self._state:
            if self._term is None or self._since is None or self._clock() >= self._acting_until:
                return None
            return Leading(self._term, self._since)

    def step(self) -> float:
        """Renew the lease, or request it. Returns the seconds until the next call."""
        asked_at = self._clock()
        try:
            term = self._term
            if term is None or not self._renew(term, asked_at):
                self._acquire()
        except EpochalError as error:
            self._fail(error)
            return min(self._settings.look_seconds, self._settings.renew_seconds)
        if self._term is None:
            return self._settings.look_seconds
        return max(0.0, asked_at + self._settings.renew_seconds - self._clock())

    def _renew(self, term: int, asked_at: float) -> bool:
        grant = self._leases.renew(LEADER, term, self._settings.lease_seconds)
        if grant is None:
            with self._state:
                self._term = None
            log.warning("term %d of this control plane is over: its lease was not renewed in time", term)
            return False
        unbroken = asked_at < self._acting_until and self._since is not None
        self._hold(grant, asked_at, self._since if unbroken else None)
        self._say(term, f"this control plane leads on, in term {term}")
        return True

    def _acquire(self) -> None:
        if self._lock is not None and not self._lock.acquire():
            self._say("locked", f"another control plane runs with {self._lock.path.parent}; this one is on standby")
            return
        asked_at = self._clock()
        answer = self._leases.acquire(LEADER, self._settings.lease_seconds)
        if isinstance(answer, Lease):
            self._say(answer.holder.id, f"{answer.holder} leads, in term {answer.term}; this one is on standby")
            return
        self._hold(answer, asked_at, None)
        self._say(answer.term, f"this control plane leads, in term {answer.term}")

    def _hold(self, grant: Grant, asked_at: float, since: datetime | None) -> None:
        with self._state:
            self._term = grant.term
            self._acting_until = asked_at + self._settings.lease_seconds - self._settings.margin_seconds
            self._since = since or grant.at

    def _fail(self, error: EpochalError) -> None:
        """Handle an unavailable catalog: the lease is held until it expires, but missing heartbeats of this period do
        not prove a loss."""
        with self._state:
            self._since = None
        self._say("failed", f"the lease cannot be kept: {error}")

    def _say(self, what: object, text: str) -> None:
        """Log a change once. The first acquisition is logged at level INFO only."""
        if what != self._said:
            log.log(logging.INFO if self._said is None and what == self._term else logging.WARNING, "%s", text)
        self._said = what


def leadership_of(settings: Settings) -> LeaseLeadership:
    """The leadership of a control plane. No connection is opened before :meth:`LeaseLeadership.open`."""
    database = Database(settings.database_url, connections=2, urgent=True)
    # SQLite supports one control plane; an earlier version, which has no leases, also holds the lock.
    lock = FolderLock(settings.data / "supervisor.lock") if database.is_sqlite else None
    return LeaseLeadership(Leases(database, _this_process(), _has_terminated), lock=lock, close=database.close)


def _this_process() -> Holder:
    here = this_machine()
    return Holder(new_id(), here.host, here.boot, str(LocalProcess.find(os.getpid())))


def _has_terminated(holder: Holder) -> bool:
    """``True`` if the holder was a process of this machine and has terminated: its lease need not expire first."""
    here = this_machine()
    there = Machine(holder.host, holder.boot)
    return there == here and not LocalProcess.parse(holder.process).exists()


class FolderLock:
    """A file lock that is held until :meth:`release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None

    def acquire(self) -> bool:
        """Return ``True`` if this process holds the lock. Does not wait."""
        if self._lock is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = FileLock.acquire(self.path)
            except OSError:
                return False
        return self._lock is not None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
