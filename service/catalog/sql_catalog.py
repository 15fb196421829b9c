"""The engine's catalog over SQL, in process: for the internal API, and for ``epochal run``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from sqlalchemy import select
from sqlalchemy.orm import Session

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
from epochal.engine.epoch import State
from epochal.errors import Conflict, Fenced, NotFound
from epochal.service.catalog import models, operation_completion, writes
from epochal.service.catalog.branch_writer import BranchWriter
from epochal.service.catalog.database import Database
from epochal.service.catalog.driver_reports import keep_report
from epochal.service.catalog.events import announce_epoch, announce_execution
from epochal.service.catalog.executions import end_attempt
from epochal.service.catalog.records import epoch_record, head_of, manifest_of
from epochal.service.catalog.rollbacks import begun_with, succession_of
from epochal.service.catalog.types import database_now, now
from epochal.standing_queries.command_results import CHANGE, outcomes_of


class SqlCatalog(Catalog):
    """One (execution, attempt) of ``database``."""

    def __init__(self, database: Database, execution: str, attempt: int) -> None:
        self._database = database
        self._execution = execution
        self._attempt = attempt

    @property
    def execution(self) -> str:
        return self._execution

    @property
    def attempt(self) -> int:
        return self._attempt

    def begin_attempt(self) -> RecoveryPoint:
        with self._writing(writes.BEGIN_ATTEMPT) as session:
            writer = self._writer(session)
            writer.begin()
            attempt = session.get_one(models.Attempt, (self._execution, self._attempt))
            attempt.begun_at = attempt.begun_at or now()
            branch = session.get_one(models.Branch, self._branch)
            head = head_of(branch)
            operation_completion.reconfigurations_lost(session, self._row(session), self._attempt)
            return RecoveryPoint(
                application=self._application,
                branch=branch.id,
                attempt=self._attempt,
                head=_reference(session, head) if head else None,
                prepared=[epoch_record(row) for row in writer.in_state(State.PREPARED)],
                started=[epoch_record(row) for row in writer.in_state(State.STARTED)],
                next_epoch=writer.next_epoch(),
                first_epoch=writer.first_epoch() or writer.next_epoch(),
                begun=begun_with(branch),
                succession=succession_of(session, branch),
                catalog_time=database_now(session),
            )

    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        with self._transition(writes.OPEN_EPOCH) as (_, writer):
            writer.open(epoch, parent)

    def prepare_epoch(
        self,
        epoch: int,
        parent: EpochKey | None,
        manifest: ManifestReference,
        counts: EpochCounts,
        terms: EpochTerms = AS_THE_EXECUTION,
    ) -> None:
        with self._transition(writes.PREPARE_EPOCH) as (session, writer):
            writer.prepare(epoch, parent, manifest, counts, terms)
            for change in terms.changes:
                if change.kind == CHANGE:
                    self._answer(session, outcomes_of(change), manifest)

    def _answer(self, session: Session, commands: Mapping[int, Failure | None], head: ManifestReference) -> None:
        """Complete commands on standing queries together with the epoch that decided them: the driver may end before it
        reports them."""
        pending = {row.arguments["number"]: row for row in self._pending(session) if row.kind == "query"}
        answered = [number for number in commands if number in pending]
        if answered:
            execution = self._row(session)
            for number in answered:
                operation_completion.directive_done(session, execution, pending[number], head, commands[number])

    def commit_epoch(self, epoch: int) -> None:
        with self._transition(writes.COMMIT_EPOCH) as (_, writer):
            writer.commit(epoch)

    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        with self._transition(writes.ABORT_EPOCH) as (_, writer):
            writer.abort(epoch, failure)

    def epoch(self, epoch: int) -> EpochRecord | None:
        branch = self._branch
        with self._database.reading() as session:
            row = session.get(models.Epoch, (branch, epoch))
            return None if row is None else epoch_record(row)

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        with self._writing(writes.HEARTBEAT) as session:
            writer = self._writer(session)
            writer.own()
            heard = writer.record_heartbeat(status.model_dump(mode="json"))
            if status.phase in ("running", "waiting") and (heard.state == "starting" or heard.has_operations):
                self._runs(session)
            return [_directive(row) for row in self._pending(session)] if heard.has_directives else []

    def _runs(self, session: Session) -> None:
        execution = self._row(session)
        if execution.state == "starting":
            execution.state = "running"
            session.get_one(models.Application, execution.application).updated_at = now()
            announce_execution(session, self._application, execution)
        operation_completion.driver_runs(session, execution)

    def replace_driver(self, status: DriverStatus, version: str) -> None:
        """Restart the driver at an epoch boundary, because its software ``version`` is too far from this control
        plane's. Does nothing until the driver runs, and while an operation is pending."""
        if status.phase != "running":
            return
        with self._writing(writes.HEARTBEAT) as session:
            self._writer(session).own()
            operation_completion.driver_replaced(session, self._row(session), version)

    def report(self, report: DriverReport) -> None:
        with self._database.writing() as session:
            is_latest = keep_report(session, self._execution, self._attempt, report)
        if is_latest and report.epochs:
            _ = self._identity  # read before the transaction, as in _writing
            with self._database.writing() as session:
                self._writer(session).record_durations(report.epochs)

    def complete(
        self,
        directive: str,
        head: ManifestReference | None,
        failure: Failure | None = None,
        result: OptimizeResult | None = None,
    ) -> None:
        with self._writing(writes.COMPLETE_DIRECTIVE) as session:
            self._writer(session).own()
            row = session.get(models.Directive, directive)
            if row is None or row.execution != self._execution:
                raise NotFound(f"Execution {self._execution} has no directive {directive!r}.")
            if row.completed_at is None:
                operation_completion.directive_done(session, self._row(session), row, head, failure, result)

    def note_progress(self, directive: str, progress: str) -> None:
        application = self._application
        with self._database.writing() as session:
            self._writer(session).own()
            row = session.get(models.Directive, directive)
            if row is None or row.execution != self._execution:
                raise NotFound(f"Execution {self._execution} has no directive {directive!r}.")
            operation_completion.directive_progressed(session, application, row, progress)

    def finish(self, failure: Failure | None) -> None:
        with self._writing(writes.FINISH_ATTEMPT) as session:
            writer = self._writer(session)
            writer.lock()
            execution = self._row(session)
            attempt = session.get_one(models.Attempt, (self._execution, self._attempt))
            if attempt.state == "lost":
                raise Fenced(
                    f"Attempt {self._attempt} of execution {self._execution} was given up; this process must stop."
                )
            if attempt.state != "running":
                return
            writer.own()
            end_attempt(session, execution, self._attempt, "ended" if failure is None else "failed", failure)
            if failure is None:
                operation_completion.execution_over(session, execution, "stopped", None)
            else:
                announce_execution(session, self._application, execution)

    @cached_property
    def _application(self) -> str:
        return self._identity[0]

    @cached_property
    def _branch(self) -> str:
        return self._identity[1]

    @cached_property
    def _identity(self) -> tuple[str, str]:
        """Application name and branch, which do not change during an execution."""
        query = (
            select(models.Application.name, models.Execution.branch)
            .join(models.Execution, models.Execution.application == models.Application.id)
            .join(models.Attempt, models.Attempt.execution == models.Execution.id)
            .where(models.Execution.id == self._execution, models.Attempt.number == self._attempt)
        )
        with self._database.reading() as session:
            found = session.execute(query).one_or_none()
        if found is None:
            raise NotFound(f"There is no attempt {self._attempt} of execution {self._execution!r}.")
        return found[0], found[1]

    @contextmanager
    def _transition(self, write: writes.Write) -> Iterator[tuple[Session, BranchWriter]]:
        with self._writing(write) as session:
            writer = self._writer(session)
            yield session, writer
            if writer.moved is not None:
                announce_epoch(session, self._application, writer.moved)

    @contextmanager
    def _writing(self, write: writes.Write) -> Iterator[Session]:
        _ = self._identity  # read first: a call that holds one connection and waits for another could deadlock
        with self._database.writing(write) as session:
            yield session

    def _writer(self, session: Session) -> BranchWriter:
        return BranchWriter(session, self._branch, self._execution, self._attempt)

    def _row(self, session: Session) -> models.Execution:
        return session.get_one(models.Execution, self._execution, with_for_update=True)

    def _pending(self, session: Session) -> Sequence[models.Directive]:
        query = select(models.Directive).where(
            models.Directive.execution == self._execution, models.Directive.completed_at.is_(None)
        )
        return session.scalars(query.order_by(models.Directive.id)).all()


def _reference(session: Session, key: EpochKey) -> ManifestReference:
    row = session.get(models.Epoch, (key.branch, key.epoch))
    reference = None if row is None else manifest_of(row)
    if reference is None:
        raise Conflict(f"The head {key} has no manifest in the catalog.")
    return reference


def _directive(row: models.Directive) -> Directive:
    return Directive.model_validate({"id": row.id, "kind": row.kind, "arguments": row.arguments})
