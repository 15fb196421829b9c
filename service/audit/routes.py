from __future__ import annotations

from fastapi import APIRouter

from epochal.service.audit.schemas import AuditAnswer
from epochal.service.context import Control
from epochal.service.pagination import Paging
from epochal.service.schema import Page
from epochal.service.security import Scope, requires

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("")
@requires(Scope.ADMIN)
def list_audit(page: Paging, control: Control) -> Page[AuditAnswer]:
    """Every call that changed something, or was refused to, newest first."""
    return control.audit.page(page)
