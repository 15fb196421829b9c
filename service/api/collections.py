from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import NotFound
from epochal.service.api.access import reads_only, requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.wire.operations import OperationAnswer
from epochal.wire.store import Collect, CollectionPlanAnswer, Verify
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1", tags=["store"])


@router.post("/collections/plan")
@requires(Role.ADMIN)
@reads_only
def plan_collection(request: Collect, control: Control) -> CollectionPlanAnswer:
    """What a collection would delete now, and why. Changes nothing."""
    return control.collections.plan(request)


@router.post("/collections", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
def collect(request: Collect, control: Control, caller: Caller) -> OperationAnswer:
    """Delete what no retained snapshot needs. The control plane also does this by itself, from time to time."""
    return control.collections.collect(request, caller.name)


@router.post("/verifications", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
@answers(NotFound)
def verify(request: Verify, control: Control, caller: Caller) -> OperationAnswer:
    """Check every file that retained snapshots need, and write again what can be, byte for byte, when asked to."""
    return control.collections.verify(request, caller.name)
