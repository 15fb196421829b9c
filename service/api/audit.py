from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.paging import Paging
from epochal.service.api.project_paths import InProject
from epochal.wire.administration import AuditEntryAnswer
from epochal.wire.bodies import Page
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get("")
@requires(Role.ADMIN)
def list_audit(page: Paging, control: Control, project: InProject) -> Page[AuditEntryAnswer]:
    """Every call that changed something of the project, or was refused to, newest first."""
    return control.administration.audit(page, project)
