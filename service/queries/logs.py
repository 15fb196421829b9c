"""Drivers' logs: in this control plane's folder while the driver is on its machine; afterwards the part kept in the
store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from epochal.errors import FileMissing, InvalidInput, NotFound
from epochal.service.catalog.database import Database
from epochal.service.catalog.driver_logs import DriverLogs
from epochal.service.catalog.types import now
from epochal.service.domain.settings import Settings
from epochal.service.queries.executions import ExecutionService
from epochal.service.runtime.launchers.base import ProcessReference
from epochal.service.runtime.logs.files import log_path, parts_of
from epochal.service.runtime.machine import this_machine
from epochal.service.runtime.stored_files import StoredFiles
from epochal.wire.applications import ExecutionAnswer


@dataclass(frozen=True)
class FoundLog:
    """Log of an attempt: a file that may still grow or be created, or the kept part (``kept``)."""

    execution: str
    attempt: int
    path: Path
    kept: bytes | None = None


class LogService:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        files: StoredFiles,
        executions: ExecutionService,
        bring: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``bring``: fetches the log of a driver on no machine of ours, as far as available."""
        self._bring = bring
        self._settings = settings
        self._database = database
        self._files = files
        self._executions = executions

    def latest(self, application: str) -> ExecutionAnswer:
        """Raises ``NotFound`` for an unknown application, and for one that was never started."""
        execution = self._executions.latest(application)
        if execution is None:
            raise NotFound(f"Application {application!r} was never started and has no log.")
        return execution

    def find(self, application: str, attempt: int | None, branch: str | None = None) -> FoundLog:
        """Log of an attempt, by default of the latest one. ``branch``: that of the attempt; by default, of the newest
        execution with an attempt of this number.

        Raises ``InvalidInput`` for a branch without an attempt, ``NotFound`` without such an attempt, or if its log is
        on another machine and not kept yet.
        """
        if branch is not None and attempt is None:
            raise InvalidInput("`branch` is that of an attempt: give `attempt`, too.")
        execution = self.latest(application)
        if attempt is not None:
            execution = self._with_attempt(execution, attempt, branch)
        number = execution.attempt if attempt is None else attempt
        path = log_path(self._settings.logs_directory, application, execution.id, number)
        if parts_of(path):
            return FoundLog(execution.id, number, path)
        with self._database.reading() as session:
            logs = DriverLogs(session)
            kept, process = logs.kept(execution.id, number), logs.process(execution.id, number)
        if kept is not None:
            try:
                return FoundLog(execution.id, number, path, self._files.read(kept.path, f"the log of attempt {number}"))
            except FileMissing:
                pass  # it has just expired
        self._check_not_expired(application, execution, number)
        reference = None if process is None else ProcessReference.parse(process)
        machine = None if reference is None else reference.machine
        if reference is not None and machine is None:
            self._bring(str(reference))
        if machine is None or machine.host == this_machine().host:
            return FoundLog(execution.id, number, path)
        raise NotFound(
            f"The log of attempt {number} of {application!r} is on host {machine.host}, where its driver was started; "
            "read it from the control plane there. After the end of a driver, the last 16 MB of its log are kept for "
            "a limited time and can be read anywhere, unless its host failed."
        )

    def _with_attempt(self, latest: ExecutionAnswer, attempt: int, branch: str | None) -> ExecutionAnswer:
        found = self._executions.with_attempt(latest.application, attempt, branch)
        if found is None:
            numbers = ", ".join(str(item.number) for item in latest.attempts) or "none"
            on = "" if branch is None else f" on branch {branch!r}"
            raise NotFound(
                f"Application {latest.application!r} has no attempt {attempt}{on}; its latest execution has {numbers}."
            )
        return found

    def _check_not_expired(self, application: str, execution: ExecutionAnswer, attempt: int) -> None:
        ended = next((item.ended_at for item in execution.attempts if item.number == attempt), None)
        days = self._settings.log_days
        if ended is not None and ended < now() - timedelta(days=days):
            raise NotFound(
                f"The log of attempt {attempt} of {application!r} has expired: the attempt ended {ended:%Y-%m-%d}, "
                f"and logs are kept for {days:g} days."
            )
