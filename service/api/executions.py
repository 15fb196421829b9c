"""Executions of an application, its epochs, its sinks and their open transactions."""

from __future__ import annotations

from fastapi import APIRouter, status

from epochal.contracts.catalog import EpochRecord, EpochState, TransactionAction
from epochal.errors import SnapshotExpired
from epochal.service.api.access import requires
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import FILES, answers
from epochal.service.api.parameters import Paging
from epochal.wire.applications import ExecutionAnswer, LifecycleItem
from epochal.wire.bodies import EpochNumber, Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.snapshots import EpochPage, TransactionDecision, TransactionsAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/executions", tags=["executions"])
epoch_router = APIRouter(prefix="/v1/applications/{name}/epochs", tags=["epochs"])
transaction_router = APIRouter(prefix="/v1/applications/{name}/transactions", tags=["transactions"])

lifecycle_router = APIRouter(prefix="/v1/applications/{name}/lifecycle", tags=["executions"])
sink_router = APIRouter(prefix="/v1/applications/{name}/sinks", tags=["sinks"])


@router.get("")
@requires(Role.VIEWER)
def list_executions(name: str, page: Paging, node: Node) -> Page[ExecutionAnswer]:
    """List executions, newest first."""
    return node.executions.page(name, page)


@router.get("/{id}")
@requires(Role.VIEWER)
def get_execution(name: str, id: str, node: Node) -> ExecutionAnswer:
    """Return an execution with its attempts and the reason why each of them ended."""
    return node.executions.get(name, id)


@lifecycle_router.get("")
@requires(Role.VIEWER)
def list_lifecycle(name: str, page: Paging, node: Node) -> Page[LifecycleItem]:
    """List the changes of what runs, newest first: operations such as `rescale`, `restart` and `upgrade`, and
    recoveries, in which a new driver replaced a failed one. Each has its reason, duration, and what it changed."""
    return node.lifecycle_history.page(name, page)


@epoch_router.get("")
@requires(Role.VIEWER)
def list_epochs(name: str, page: Paging, node: Node, state: EpochState | None = None) -> EpochPage:
    """List the epochs of the lineage, newest first. Old epochs are folded: `folded` has ranges of committed epochs
    between the items, or below the last one."""
    return node.epochs.page(name, page, state)


@epoch_router.get("/{epoch}")
@requires(Role.VIEWER)
@answers(SnapshotExpired)
def get_epoch(name: str, epoch: EpochNumber, node: Node) -> EpochRecord:
    """Return an epoch; an aborted epoch has the reason. 410 if the epoch was folded into a range."""
    return node.epochs.get(name, epoch)


@transaction_router.get("")
@requires(Role.VIEWER)
@answers(*FILES)
def list_transactions(name: str, control: Control) -> TransactionsAnswer:
    """List the prepared, uncommitted transactions of each sink, and why they are waiting."""
    return control.transactions.open(name)


@transaction_router.post("/{sink}/{epoch}/{action}", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
@answers(*FILES)
def decide_transaction(
    name: str,
    sink: str,
    epoch: EpochNumber,
    action: TransactionAction,
    decision: TransactionDecision,
    control: Control,
    caller: Caller,
) -> OperationAnswer:
    """Resolve a waiting transaction. `retry` repeats the commit immediately. `commit` declares that its rows were
    applied manually, `abort` that they are discarded. Both leave only this sink without the rows that Epochal would
    have written; the audit log and the lineage show the decision."""
    return control.transactions.decide(name, sink, epoch, action, decision, caller.name)


@sink_router.post("/{sink}/optimize", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
def optimize_sink(name: str, sink: str, control: Control, caller: Caller) -> OperationAnswer:
    """Compact the small files of the Delta table that a sink writes, up to its `target_file_size`. The driver does it
    beside the epochs, which continue. The operation's result has the number of files and bytes that were replaced and
    written, and the version of the table; null if there was nothing to compact. 422 for a sink that does not write a
    Delta table, 409 if the application does not run."""
    return control.sinks.optimize(name, sink, caller.name)
