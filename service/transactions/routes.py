from __future__ import annotations

from fastapi import APIRouter, status

from epochal.contracts.catalog import TransactionAction
from epochal.service.context import Control
from epochal.service.operations.schemas import OperationAnswer
from epochal.service.schema import EpochNumber
from epochal.service.security import Scope, requires
from epochal.service.security.gate import Caller
from epochal.service.transactions.schemas import TransactionDecision, TransactionsAnswer

router = APIRouter(prefix="/v1/applications/{name}/transactions", tags=["transactions"])


@router.get("")
@requires(Scope.READ)
def list_transactions(name: str, control: Control) -> TransactionsAnswer:
    """What is prepared and not yet committed, for each sink, and why it waits."""
    return control.transactions.open(name)


@router.post("/{sink}/{epoch}/{action}", status_code=status.HTTP_202_ACCEPTED)
@requires(Scope.ADMIN)
def decide_transaction(
    name: str,
    sink: str,
    epoch: EpochNumber,
    action: TransactionAction,
    decision: TransactionDecision,
    control: Control,
    caller: Caller,
) -> OperationAnswer:
    """`retry` tries again now. `commit` says that it was applied by hand, `abort` that its rows shall be dropped: both
    leave this sink, and no other, without what Epochal would have written; the audit log and lineage say so."""
    return control.transactions.decide(name, sink, epoch, action, decision, caller.name)
