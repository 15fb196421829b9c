from __future__ import annotations

from fastapi import APIRouter, status

from epochal.service.context import Control
from epochal.service.operations.schemas import OperationAnswer
from epochal.service.retention.schemas import Collect, CollectionPlanAnswer, Verify
from epochal.service.security import Scope, reads_only, requires
from epochal.service.security.gate import Caller

router = APIRouter(prefix="/v1", tags=["store"])


@router.post("/collections/plan")
@requires(Scope.ADMIN)
@reads_only
def plan_collection(request: Collect, control: Control) -> CollectionPlanAnswer:
    """What a collection would delete now, and why. Changes nothing."""
    return control.collections.plan(request)


@router.post("/collections", status_code=status.HTTP_202_ACCEPTED)
@requires(Scope.ADMIN)
def collect(request: Collect, control: Control, caller: Caller) -> OperationAnswer:
    """Delete what no retained snapshot needs. The control plane also does this by itself, from time to time."""
    return control.collections.collect(request, caller.name)


@router.post("/verifications", status_code=status.HTTP_202_ACCEPTED)
@requires(Scope.ADMIN)
def verify(request: Verify, control: Control, caller: Caller) -> OperationAnswer:
    """Check every file that retained snapshots need, and write again what can be, byte for byte, when asked to."""
    return control.collections.verify(request, caller.name)
