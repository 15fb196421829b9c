from __future__ import annotations

from fastapi import APIRouter, status

from epochal.contracts.catalog import TransactionAction
from epochal.service.api.access import requires
from epochal.service.api.answers import FILES, answers
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.wire.bodies import EpochNumber
from epochal.wire.operations import OperationAnswer
from epochal.wire.snapshots import TransactionDecision, TransactionsAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/transactions", tags=["transactions"])


@router.get("")
@requires(Role.VIEWER)
@answers(*FILES)
def list_transactions(name: str, control: Control) -> TransactionsAnswer:
    """What is prepared and not yet committed, for each sink, and why it waits."""
    return control.transactions.open(name)


@router.post("/{sink}/{epoch}/{action}", status_code=status.HTTP_202_ACCEPTED)
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
    """`retry` tries again now. `commit` says that it was applied by hand, `abort` that its rows shall be dropped: both
    leave this sink, and no other, without what Epochal would have written; the audit log and lineage say so."""
    return control.transactions.decide(name, sink, epoch, action, decision, caller.name)
