"""Archiving of drivers' logs: the end of the log of a driver that has terminated is stored in the store, where any
control plane can read it.

Each control plane archives the logs in its own folder, since no other can read them. Each round compares the folder
with the catalog and does what is missing, so the process may end at any point, and two processes on one folder are
harmless.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from epochal.background.service import BackgroundService
from epochal.errors import NotFound
from epochal.service.catalog.database import Database
from epochal.service.catalog.driver_logs import AttemptOfLog, DriverLogs, owner_of
from epochal.service.runtime.logs.files import parts_of, read_end
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots import layout

KEPT_BYTES = 16 << 20
"""Maximum size of the archived end of a log."""
ROUND_SECONDS = 5.0
QUIET_SECONDS = 2.0
"""Minimum time since the last write to a log before it is archived: a driver still logs some lines after its last call
to the control plane."""


@dataclass(frozen=True)
class _Log:
    """A log in the folder. ``bytes`` and ``written_at``: those of all its files."""

    path: Path
    application: str
    execution: str
    attempt: int
    bytes: int
    written_at: float


class LogKeeper:
    """A :class:`~epochal.service.domain.ports.Component`."""

    def __init__(self, folder: Path, database: Database, files: StoredFiles, kept_for: timedelta) -> None:
        """``kept_for``: retention period of logs in the store and in the folder."""
        self._folder = folder
        self._database = database
        self._files = files
        self._kept_for = kept_for
        self._done: dict[Path, int] = {}
        """Archived logs, and their size at that time."""
        self._service = BackgroundService("logs", self.look, ROUND_SECONDS)

    def open(self) -> None:
        self._service.start()

    def close(self) -> None:
        self._service.stop()

    def look(self) -> None:
        """Archive logs of ended attempts, and remove logs that have expired or whose application was deleted."""
        found = list(self._logs())
        self._done = {item.path: self._done[item.path] for item in found if item.path in self._done}
        now = time.time()
        expired = now - self._kept_for.total_seconds()
        waiting = [
            item
            for item in found
            if item.written_at < expired
            or (self._done.get(item.path) != item.bytes and item.written_at <= now - QUIET_SECONDS)
        ]
        if not waiting:
            return
        with self._database.reading() as session:
            attempts = DriverLogs(session).attempts({item.execution for item in waiting})
        for item in waiting:
            attempt = attempts.get((item.execution, item.attempt))
            if attempt is not None and attempt.is_over:  # logs of another catalog are not touched
                self._look_after(item, attempt, item.written_at < expired)

    def _look_after(self, item: _Log, attempt: AttemptOfLog, has_expired: bool) -> None:
        if attempt.is_deleted or has_expired:
            for path in parts_of(item.path):
                path.unlink(missing_ok=True)
            with suppress(OSError):
                item.path.parent.rmdir()
            return
        with self._database.reading() as session:
            kept = DriverLogs(session).kept(item.execution, item.attempt)
        if kept is None or kept.position + (kept.bytes or 0) != item.bytes:
            try:
                self._keep(item)
            except NotFound:
                return  # its application was deleted meanwhile
        self._done[item.path] = item.bytes

    def _keep(self, item: _Log) -> None:
        data = read_end(item.path, KEPT_BYTES)
        stored = layout.driver_log(item.application, item.execution, item.attempt)
        owner = owner_of(item.execution, item.attempt)
        self._files.write("log", owner, stored, data, max(item.bytes - len(data), 0))
        with self._database.writing() as session:
            DriverLogs(session).keep(item.execution, item.attempt, stored, len(data), self._kept_for)

    def _logs(self) -> Iterator[_Log]:
        for path in self._folder.glob("*/*.log"):
            execution, _, number = path.stem.rpartition("-")
            with suppress(FileNotFoundError):
                status = [part.stat() for part in parts_of(path)]
                if execution and number.isdecimal() and status:
                    yield _Log(
                        path,
                        path.parent.name,
                        execution,
                        int(number),
                        sum(each.st_size for each in status),
                        max(each.st_mtime for each in status),
                    )
