from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.paging import Paging
from epochal.wire.audit import AuditAnswer
from epochal.wire.bodies import Page
from epochal.wire.roles import Role

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("")
@requires(Role.ADMIN)
def list_audit(page: Paging, control: Control) -> Page[AuditAnswer]:
    """Every call that changed something, or was refused to, newest first."""
    return control.administration.audit(page)
