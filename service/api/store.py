from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import Conflict, NotFound, OptionError
from epochal.service.api.access import reads_only, requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import answers
from epochal.wire.operations import OperationAnswer
from epochal.wire.store import Backup, Collect, CollectionPlanAnswer, Prune, PruningAnswer, Verify
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


@router.post("/backups", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
@answers(OptionError)
def back_up(request: Backup, control: Control, caller: Caller) -> OperationAnswer:
    """Copy the catalog, and all files and artifacts that it names. No collection runs meanwhile; applications do."""
    return control.backups.create(request, caller.name)


@router.post("/backups/prune/plan")
@requires(Role.ADMIN)
@reads_only
@answers(Conflict, NotFound, OptionError)
def plan_pruning(request: Prune, control: Control) -> PruningAnswer:
    """Which backups would go now, and how much space that gives. Changes nothing."""
    return control.backups.plan_pruning(request)


@router.post("/backups/prune", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
@answers(OptionError)
def prune(request: Prune, control: Control, caller: Caller) -> OperationAnswer:
    """Remove old backups, and the files that none of those names that stay. Fails unless one of these is whole."""
    return control.backups.prune(request, caller.name)
