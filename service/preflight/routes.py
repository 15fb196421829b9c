from __future__ import annotations

from fastapi import APIRouter

from epochal.service.context import Control
from epochal.service.preflight.schemas import Preflight, PreflightAnswer
from epochal.service.security import Scope, requires

router = APIRouter(prefix="/v1/preflight", tags=["versions"])


@router.post("")
@requires(Scope.OPERATE)
def check_version(request: Preflight, control: Control) -> PreflightAnswer:
    """Build a version and compare it with a snapshot, without deploying it: what would be kept, added, lost, refused.

    The author's code runs, as when it is submitted; nothing is changed."""
    return control.preflight.check(request)
