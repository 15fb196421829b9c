"""Open transactions of sinks: read from the driver's reports or from manifests; decisions are passed to the driver."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.contracts.catalog import DriverStatus, TransactionAction, TransactionOrder
from epochal.errors import Conflict, NotFound
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import announce_operation
from epochal.service.catalog.executions import ENDED
from epochal.service.catalog.models import Epoch, Execution
from epochal.service.catalog.operations import OperationRepository, operation_answer
from epochal.service.catalog.records import manifest_of
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.commands.applications import Lifecycle
from epochal.snapshots.store import SnapshotStore
from epochal.wire.operations import OperationAnswer
from epochal.wire.snapshots import TransactionAnswer, TransactionDecision, TransactionsAnswer


class TransactionService:
    def __init__(self, database: Database, lifecycle: Lifecycle, store: SnapshotStore) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._store = store

    def open(self, application: str) -> TransactionsAnswer:
        """Raises ``NotFound``; ``FileMissing`` or ``FileCorrupt`` when a prepared manifest is damaged."""
        with self._database.reading() as session:
            applications = ApplicationRepository(session)
            row = applications.named(application)
            epochs = list(SnapshotRepository(session).prepared(row))
            status = _status(applications.execution(row))
        if status is not None:
            return TransactionsAnswer(items=list(_reported(status, epochs)))
        return TransactionsAnswer(items=[item for epoch in epochs for item in self._from_manifest(epoch)])

    def decide(
        self,
        application: str,
        sink: str,
        epoch: int,
        action: TransactionAction,
        decision: TransactionDecision,
        by: str,
    ) -> OperationAnswer:
        """Raises ``NotFound`` without such a transaction, ``Conflict`` if no driver is running."""
        items = self.open(application).items
        if not any((item.sink, item.epoch) == (sink, epoch) for item in items):
            raise NotFound(f"Application {application!r} has no open transaction of sink {sink!r} in epoch {epoch}.")
        with self._database.writing() as session:
            applications, operations = ApplicationRepository(session), OperationRepository(session)
            row = applications.locked(application)
            execution = applications.execution(row)
            if execution is None or execution.state in ENDED:
                raise Conflict(
                    f"Application {application!r} is not running; only its driver writes to sinks. Start it: it first "
                    "commits open transactions; repeat this call if a sink then blocks one."
                )
            order = TransactionOrder(sink=sink, epoch=epoch, action=action, by=by, message=decision.message)
            arguments = {"branch": row.branch, **order.model_dump(exclude_none=True)}
            operation = operations.add("transaction", row, execution, arguments, by, "waiting for the driver")
            operations.direct(execution, operation, "transaction", order.model_dump(mode="json"))
            answer = operation_answer(operation, application)
            announce_operation(session, application, operation)
            waiting = operation.execution
        self._lifecycle.wake(waiting)
        return answer

    def _from_manifest(self, epoch: Epoch) -> Iterator[TransactionAnswer]:
        reference = manifest_of(epoch)
        if reference is None:
            return
        for sink, part in sorted(self._store.read_manifest(reference).sinks.items()):
            yield TransactionAnswer(
                branch=epoch.branch,
                epoch=epoch.epoch,
                sink=sink,
                rows=sum(handle.rows for handle in part.handles),
                prepared_at=epoch.prepared_at,
                waiting_since=None,
                error=None,
                driver=False,
            )


def _status(execution: Execution | None) -> DriverStatus | None:
    """Last report of the running driver; ``None`` without one, or before it has reached its sinks."""
    if execution is None or execution.state in ENDED or execution.status is None:
        return None
    status = DriverStatus.model_validate(execution.status)
    return None if status.phase in ("starting", "recovering") else status


def _reported(status: DriverStatus, epochs: list[Epoch]) -> Iterator[TransactionAnswer]:
    rows = {epoch.epoch: epoch for epoch in epochs}
    for item in status.transactions:
        # Epochs published since the driver's last report are no longer open.
        if item.epoch in rows:
            yield TransactionAnswer(
                branch=rows[item.epoch].branch,
                epoch=item.epoch,
                sink=item.sink,
                rows=item.rows,
                prepared_at=rows[item.epoch].prepared_at,
                waiting_since=item.since,
                error=item.error,
                driver=True,
            )
