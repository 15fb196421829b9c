from __future__ import annotations

from fastapi import APIRouter, Response, status

from epochal.errors import Conflict, IncompatibleState, NotFound
from epochal.service.api.access import requires
from epochal.service.api.answers import BUILDING, FILES, SNAPSHOT, answers
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.sink_targets import SharedTargets
from epochal.wire.operations import OperationAnswer
from epochal.wire.preflight import Preflight, PreflightAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/preflight", tags=["versions"])


@router.post(
    "",
    response_model=None,
    responses={
        status.HTTP_200_OK: {"model": PreflightAnswer, "description": "What an upgrade would do."},
        status.HTTP_202_ACCEPTED: {
            "model": OperationAnswer,
            "description": "With `trial`: the same, with what the trial shows, is the `result` of this operation.",
        },
    },
)
@requires(Role.AUTHOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, NotFound, Conflict, IncompatibleState, SharedTargets)
def check_version(
    request: Preflight, control: Control, caller: Caller, response: Response, project: InProject
) -> PreflightAnswer | OperationAnswer:
    """Build a version and compare it with a snapshot, without deploying it: what would be kept, added, lost, refused.

    The author's code runs, as when it is submitted; nothing is changed."""
    if request.trial is None:
        return control.preflight.check(request, project)
    response.status_code = status.HTTP_202_ACCEPTED
    return control.preflight.try_out(request, project, caller.name)
