"""The reconciler: each round compares every active execution with its driver and takes the next step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from epochal.contracts.catalog import Failure
from epochal.driver.orders import DriverOrders
from epochal.errors import CatalogUnavailable, Conflict, EpochalError, LauncherUnavailable, NotFound, OutcomeUnknown
from epochal.logs import about
from epochal.service.domain import failures
from epochal.service.domain.executions import (
    AttemptTicket,
    DriverName,
    Executions,
    LaunchPlan,
    Supervised,
    SupervisedAttempt,
    SupervisedExecution,
)
from epochal.service.domain.ports import Leadership, Leading
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import (
    EndExecution,
    GiveUpAttempt,
    Launch,
    Loss,
    Process,
    SupervisionSettings,
    Wait,
    decide,
)
from epochal.service.runtime.driver_orders import orders_of
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.logs.files import last_lines, log_path
from epochal.service.runtime.machine import Machine, steady_seconds, this_machine

log = logging.getLogger("epochal.supervision")

LAST_WORDS = 20
"""Number of lines of a driver's log that are included in the reason of a failure."""


class Reconciler:
    """Reconciles the executions in the catalog with the drivers that run.

    Holds no state that has to survive: a control plane that begins to lead finds every driver of the previous leader in
    the catalog and continues with it. While the catalog is unavailable, no decisions are made.

    A late action, of a control plane that was suspended after it had checked that it leads, is harmless: an attempt is
    given up only if no heartbeat has arrived since the decision, a new attempt begins only if none runs, and a process
    is terminated only by its identity, after its attempt has ended in the catalog.
    """

    def __init__(
        self,
        settings: Settings,
        executions: Executions,
        launcher: Launcher,
        leadership: Leadership,
        supervision: SupervisionSettings,
        here: Machine | None = None,
        uptime_seconds: Callable[[], float] = steady_seconds,
        serves: Callable[[], bool] = lambda: True,
    ) -> None:
        """``serves``: returns ``True`` while this control plane can answer drivers."""
        self._settings = settings
        self._executions = executions
        self._launcher = launcher
        self._leadership = leadership
        self._supervision = supervision
        self._here = here or this_machine()
        self._uptime_seconds = uptime_seconds
        self._serves = serves
        self._last_look: datetime | None = None
        self._unbroken_since: datetime | None = None

    def round(self) -> float:
        """Take one step for each active execution; no step while another control plane leads.

        Returns the seconds until the next round, unless an event triggers it earlier.
        """
        usual = self._supervision.round_seconds
        leading = self._leadership.leading()
        if leading is None:
            self._last_look = None
            return usual
        try:
            supervised = self._executions.supervised()
        except EpochalError as error:
            log.warning("cannot read the executions to supervise: %s", error)
            self._last_look = None
            return usual
        listening_since = max(self._listening_since(supervised), leading.since)
        pause = usual
        for execution in supervised.executions:
            if not self._still_leads(leading):
                return usual
            latest = execution.attempts[-1].number if execution.attempts else None
            try:
                with about(application=execution.application, execution=execution.id, attempt=latest):
                    until = self._look(execution, supervised.at, listening_since, leading)
                    pause = pause if until is None else min(pause, until)
            except (CatalogUnavailable, LauncherUnavailable, OutcomeUnknown, Conflict, NotFound) as error:
                # Changed by another process, or a service is unavailable: the next round reads it again.
                log.info("execution %s: %s", execution.id, error)
            except Exception:
                # An error of one execution must not stop the supervision of the others.
                log.exception("execution %s could not be looked after", execution.id)
        return pause

    def _listening_since(self, supervised: Supervised) -> datetime:
        """The time since which drivers could continuously be heard. It starts again after this process was suspended or
        starved, after the process that answers drivers was down, and after the database's clock was changed."""
        last, self._last_look = self._last_look, supervised.at
        pause = timedelta(seconds=self._supervision.lease_seconds / 2)
        unbroken = last is not None and last <= supervised.at <= last + pause and self._serves()
        if self._unbroken_since is None or not unbroken:
            self._unbroken_since = supervised.at
        return self._unbroken_since

    def _still_leads(self, leading: Leading) -> bool:
        now = self._leadership.leading()
        return now is not None and now.term == leading.term

    def _look(
        self, execution: SupervisedExecution, at: datetime, listening_since: datetime, leading: Leading
    ) -> float | None:
        """Seconds until the next step is due; ``None``: not known."""
        process = self._process(execution, at)
        match decide(execution, process, at, listening_since, self._supervision):
            case Wait(seconds):
                self._say_what_it_waits_for(execution, process)
                return seconds
            case Launch():
                return self._launch(execution, leading)
            case GiveUpAttempt(attempt, loss, kill):
                self._give_up(execution, attempt, loss, kill)
                return 0.0
            case EndExecution(failed, failure):
                why = {"decision": "end", "reason": failure.message if failure else "it has stopped"}
                log.info("execution %s of %s: no further attempt", execution.id, execution.application, extra=why)
                self._executions.execution_ended(execution.id, "failed" if failed else "stopped", failure)
                return None

    def _process(self, execution: SupervisedExecution, at: datetime) -> Process:
        attempt = execution.attempts[-1] if execution.attempts else None
        if attempt is None or attempt.state != "running":
            return Process.UNKNOWN
        if attempt.process is None:
            return self._find(execution, attempt)
        reference = ProcessReference.parse(attempt.process)
        if self._is_here(reference):
            self._launcher.bring_log(reference)
            return Process.ALIVE if self._launcher.alive(reference) else Process.GONE
        assert reference.machine is not None
        earlier = reference.machine.was_before(self._here) and not self._heard_since_start(execution, attempt, at)
        return Process.GONE if earlier else Process.ELSEWHERE

    def _heard_since_start(self, execution: SupervisedExecution, attempt: SupervisedAttempt, at: datetime) -> bool:
        """``True`` if a heartbeat has arrived since this machine was started: the driver is then on another machine
        with the same name."""
        heard_at = execution.heartbeat_at
        started_at = at - timedelta(seconds=self._uptime_seconds())
        return heard_at is not None and heard_at >= attempt.started_at and heard_at > started_at

    def _find(self, execution: SupervisedExecution, attempt: SupervisedAttempt) -> Process:
        """Find the driver by its name: the process that launched it has not recorded its reference."""
        reference = self._launcher.drivers().get(DriverName(execution.id, attempt.number))
        if reference is None:
            return Process.UNKNOWN
        self._executions.launched(execution.id, attempt.number, str(reference))
        return Process.ALIVE

    def _is_here(self, reference: ProcessReference) -> bool:
        return reference.machine is None or reference.machine == self._here

    def _launch(self, execution: SupervisedExecution, leading: Leading) -> float | None:
        self._launcher.check()
        plan = self._executions.plan(execution.id)
        ticket = self._executions.new_attempt(execution.id)
        if not self._still_leads(leading):
            return None  # the attempt is given up as one without any heartbeat
        try:
            reference = self._launcher.launch(self._orders(plan, ticket))
        except LauncherUnavailable:
            raise  # it may run: it is found by its name, or given up later
        except EpochalError as error:
            why = {"decision": "fail", "attempt": ticket.attempt, "reason": error.message}
            log.error("execution %s attempt %d cannot be launched: %s", execution.id, ticket.attempt, error, extra=why)
            self._executions.attempt_ended(execution.id, ticket.attempt, "failed", failures.of_error(error))
            return 0.0
        words = "execution %s of %s: attempt %d is %s"
        what = {"decision": "launch", "attempt": ticket.attempt, "driver": str(reference)}
        log.info(words, execution.id, plan.application, ticket.attempt, reference, extra=what)
        # If this call fails, the next round finds the driver by its name.
        self._executions.launched(execution.id, ticket.attempt, str(reference))
        return None

    def _orders(self, plan: LaunchPlan, ticket: AttemptTicket) -> DriverOrders:
        return orders_of(plan, ticket.attempt, ticket.token, self._settings, self._here)

    def _say_what_it_waits_for(self, execution: SupervisedExecution, process: Process) -> None:
        """Record why a driver has not begun yet, for users."""
        attempt = execution.attempts[-1] if execution.attempts else None
        if attempt is None or attempt.begun or attempt.process is None or process is not Process.ALIVE:
            return
        cause = self._launcher.explain(ProcessReference.parse(attempt.process))
        if cause is not None and cause != execution.detail:
            self._executions.waits(execution.id, attempt.number, cause)

    def _give_up(self, execution: SupervisedExecution, attempt: SupervisedAttempt, loss: Loss, kill: bool) -> None:
        """Give up an attempt: in the catalog first, which refuses if a heartbeat has arrived in the meantime."""
        reference = self._reference(execution, attempt)
        here = reference is not None and self._is_here(reference)
        exit_code = self._launcher.exit_code(reference) if reference is not None and here else None
        failure = self._failure(execution, attempt, loss, exit_code, reference)
        why = {"decision": "give-up", "attempt": attempt.number, "reason": loss.value}
        log.warning("execution %s attempt %d is given up: %s", execution.id, attempt.number, loss.value, extra=why)
        if loss in (Loss.NOT_HEARD, Loss.NEVER_HEARD, Loss.NOT_BEGUN):
            self._executions.attempt_lost(execution.id, attempt.number, execution.heartbeat_at, failure)
        else:
            ended_by_itself = exit_code is not None and exit_code >= 0
            self._executions.attempt_ended(
                execution.id, attempt.number, "failed" if ended_by_itself else "lost", failure
            )
        if kill and reference is not None and here:
            self._launcher.terminate(reference, kill=True)

    def _reference(self, execution: SupervisedExecution, attempt: SupervisedAttempt) -> ProcessReference | None:
        if attempt.process is not None:
            return ProcessReference.parse(attempt.process)
        return self._launcher.drivers().get(DriverName(execution.id, attempt.number))

    def _failure(
        self,
        execution: SupervisedExecution,
        attempt: SupervisedAttempt,
        loss: Loss,
        exit_code: int | None,
        reference: ProcessReference | None,
    ) -> Failure | None:
        """``None`` if the attempt has not failed."""
        if loss is Loss.NOT_BEGUN:
            return None
        elsewhere = None if reference is None or self._is_here(reference) else reference.machine
        host = None if elsewhere is None else elsewhere.host
        cause = self._cause(reference)  # first: it may wait for the end of the log
        last_words = last_lines(self._log(execution, attempt), LAST_WORDS)
        match loss:
            case Loss.GONE:
                return failures.process_gone(exit_code, last_words, cause)
            case Loss.NOT_HEARD:
                return failures.not_heard(self._supervision.lease_seconds, last_words, host, cause)
            case Loss.NEVER_HEARD:
                return failures.never_heard(self._supervision.start_seconds, last_words, host, cause)
            case Loss.NOT_STOPPED:
                return failures.not_stopped(self._supervision.stop_seconds)

    def _cause(self, reference: ProcessReference | None) -> str | None:
        if reference is None or not self._is_here(reference):
            return None
        try:
            return self._launcher.explain(reference)
        except EpochalError as error:
            log.info("why a driver has ended is not known: %s", error)
            return None

    def _log(self, execution: SupervisedExecution, attempt: SupervisedAttempt) -> Path:
        return log_path(self._settings.logs_directory, execution.application, execution.id, attempt.number)
