"""The supervisor: a thread that looks at every execution that is not over, and takes the next step for each."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from epochal.contracts.catalog import Failure
from epochal.driver.orders import ArtifactFile, DriverOrders
from epochal.errors import CatalogUnavailable, Conflict, EpochalError, NotFound
from epochal.service.domain.ports import AttemptTicket, Executions, LaunchPlan, SupervisedAttempt, SupervisedExecution
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import failures
from epochal.service.domain.supervision.decisions import (
    EndExecution,
    GiveUpAttempt,
    Launch,
    Loss,
    Process,
    Wait,
    decide,
)
from epochal.service.domain.supervision.settings import SupervisionSettings
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.logs.files import last_lines, log_path
from epochal.service.runtime.logs.rotation import rotate
from epochal.service.runtime.supervision.departures import Departures
from epochal.service.runtime.supervision.right import SupervisionRight

log = logging.getLogger("epochal.supervision")

LAST_WORDS = 20
"""So many lines of a driver's log tell people why it ended."""


class ThreadedSupervisor:
    """The control plane's :class:`~epochal.service.domain.ports.Supervisor`.

    It keeps nothing that matters in memory: a control plane that starts finds every driver of the one before in the
    catalog, and goes on with it. While the catalog is away, nothing is decided.
    """

    def __init__(
        self,
        settings: Settings,
        executions: Executions,
        launcher: Launcher,
        supervision: SupervisionSettings | None = None,
    ) -> None:
        self._settings = settings
        self._executions = executions
        self._launcher = launcher
        self._supervision = supervision or SupervisionSettings()
        self._right = SupervisionRight(settings.data, executions, self._supervision)
        self._departures = Departures(launcher, settings.work_directory)
        self._listening_since = datetime.now(UTC)
        self._last_round = self._listening_since
        self._logs_that_stay: set[Path] = set()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def open(self) -> None:
        """Raises ``SupervisedElsewhere``."""
        self._right.claim()
        self._listening_since = self._last_round = datetime.now(UTC)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._right.release()

    def wake(self, execution: str | None = None) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            if self._may_supervise():
                self._round()
            self._wake.wait(self._supervision.round_seconds)

    def _may_supervise(self) -> bool:
        try:
            return self._right.held()
        except EpochalError as error:
            log.warning("cannot say in the catalog that this control plane supervises: %s", error)
            self._listening_since = datetime.now(UTC)
            return False

    def _round(self) -> None:
        now = datetime.now(UTC)
        if now - self._last_round > timedelta(seconds=self._supervision.lease_seconds / 2):
            # This process itself was stopped or starved: nobody could be heard meanwhile.
            self._listening_since = now
        self._last_round = now
        try:
            supervised = self._executions.supervised()
        except EpochalError as error:
            log.warning("cannot read what to supervise: %s", error)
            self._listening_since = datetime.now(UTC)
            return
        self._departures.look(supervised)
        for execution in supervised:
            if self._closing or not self._may_supervise():
                return
            self._rotate_log(execution)
            try:
                self._look(execution)
            except (CatalogUnavailable, Conflict, NotFound) as error:
                # Somebody else changed it, or nobody can be asked: the next round sees what is there then.
                log.info("execution %s: %s", execution.id, error)
            except Exception:
                # One execution must not keep the others from being looked after.
                log.exception("execution %s could not be looked after", execution.id)

    def _rotate_log(self, execution: SupervisedExecution) -> None:
        if not execution.attempts:
            return
        path = self._log(execution, execution.attempts[-1])
        try:
            rotate(path, self._settings.log_bytes, self._settings.log_files)
        except OSError as error:
            if path not in self._logs_that_stay:
                self._logs_that_stay.add(path)
                log.warning("the log %s cannot be rotated, and grows: %s", path, error)

    def _look(self, execution: SupervisedExecution) -> None:
        now = datetime.now(UTC)
        match decide(execution, self._process(execution), now, self._listening_since, self._supervision):
            case Wait():
                return
            case Launch():
                self._launch(execution)
            case GiveUpAttempt(attempt, loss, kill):
                self._give_up(execution, attempt, loss, kill)
                self._wake.set()
            case EndExecution(failed, failure):
                log.info("execution %s of %s: no further attempt", execution.id, execution.application)
                self._executions.execution_ended(execution.id, "failed" if failed else "stopped", failure)

    def _process(self, execution: SupervisedExecution) -> Process:
        attempt = execution.attempts[-1] if execution.attempts else None
        if attempt is None or attempt.process is None:
            return Process.UNKNOWN
        alive = self._launcher.alive(ProcessReference.parse(attempt.process))
        return Process.ALIVE if alive else Process.GONE

    def _launch(self, execution: SupervisedExecution) -> None:
        plan = self._executions.plan(execution.id)
        ticket = self._executions.new_attempt(execution.id)
        try:
            reference = self._launcher.launch(self._orders(plan, ticket))
        except EpochalError as error:
            log.error("execution %s attempt %d cannot be launched: %s", execution.id, ticket.attempt, error)
            self._executions.attempt_ended(execution.id, ticket.attempt, "failed", failures.of_error(error))
            self._wake.set()
            return
        log.info("execution %s of %s: attempt %d is %s", execution.id, plan.application, ticket.attempt, reference)
        try:
            self._executions.launched(execution.id, ticket.attempt, str(reference))
        except EpochalError:
            # Nobody would find it again; the attempt counts as never heard, and the next one fences whatever lives.
            self._launcher.terminate(reference, kill=True)
            raise

    def _orders(self, plan: LaunchPlan, ticket: AttemptTicket) -> DriverOrders:
        return DriverOrders(
            control_plane=self._settings.url,
            token=ticket.token,
            execution=plan.execution,
            attempt=ticket.attempt,
            application=plan.application,
            artifact=ArtifactFile(path=plan.artifact, sha256=plan.artifact_sha256),
            parameters=plan.parameters,
            configuration=plan.configuration,
            version=plan.version,
            by=plan.by,
            message=plan.message,
            shadow=plan.shadow,
            available_now=plan.available_now,
            drain=plan.drain,
            store=self._settings.store_url,
            work_directory=self._settings.work_directory / plan.execution,
        )

    def _give_up(self, execution: SupervisedExecution, attempt: SupervisedAttempt, loss: Loss, kill: bool) -> None:
        reference = ProcessReference.parse(attempt.process) if attempt.process is not None else None
        exit_code = self._launcher.exit_code(reference) if reference is not None else None
        if kill and reference is not None:
            self._launcher.terminate(reference, kill=True)
        failure = self._failure(execution, attempt, loss, exit_code)
        log.warning("execution %s attempt %d is given up: %s", execution.id, attempt.number, loss.value)
        ended_by_itself = exit_code is not None and exit_code >= 0
        self._executions.attempt_ended(execution.id, attempt.number, "failed" if ended_by_itself else "lost", failure)

    def _failure(
        self, execution: SupervisedExecution, attempt: SupervisedAttempt, loss: Loss, exit_code: int | None
    ) -> Failure:
        last_words = last_lines(self._log(execution, attempt), LAST_WORDS)
        match loss:
            case Loss.GONE:
                return failures.process_gone(exit_code, last_words)
            case Loss.NOT_HEARD:
                return failures.not_heard(self._supervision.lease_seconds, last_words)
            case Loss.NEVER_HEARD:
                return failures.never_heard(self._supervision.start_seconds, last_words)
            case Loss.NOT_STOPPED:
                return failures.not_stopped(self._supervision.stop_seconds)

    def _log(self, execution: SupervisedExecution, attempt: SupervisedAttempt) -> Path:
        return log_path(self._settings.logs_directory, execution.application, execution.id, attempt.number)
