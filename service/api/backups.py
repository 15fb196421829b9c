from __future__ import annotations

from fastapi import APIRouter, status

from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.wire.backups import Backup
from epochal.wire.operations import OperationAnswer
from epochal.wire.scopes import Scope

router = APIRouter(prefix="/v1", tags=["store"])


@router.post("/backups", status_code=status.HTTP_202_ACCEPTED)
@requires(Scope.ADMIN)
def back_up(request: Backup, control: Control, caller: Caller) -> OperationAnswer:
    """Copy the catalog, and all files and artifacts that it names. No collection runs meanwhile; applications do."""
    return control.backups.create(request, caller.name)
