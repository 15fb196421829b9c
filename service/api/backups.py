from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import Conflict, NotFound, OptionError
from epochal.service.api.access import reads_only, requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.wire.operations import OperationAnswer
from epochal.wire.store import Backup, Prune, PruningAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1", tags=["store"])


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
