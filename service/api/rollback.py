from __future__ import annotations

from fastapi import APIRouter, Response, status

from epochal.errors import IncompatibleState, PreconditionFailed
from epochal.service.api.access import requires
from epochal.service.api.answers import FILES, SNAPSHOT, answers
from epochal.service.api.conditions import IfMatch
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.commands.rollback import NotConfirmed
from epochal.wire.operations import OperationAnswer
from epochal.wire.rollback import RollBack, RollbackPlan
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/rollback", tags=["rollback"])


@router.post("", status_code=status.HTTP_202_ACCEPTED, responses={200: {"model": RollbackPlan}})
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, *FILES, NotConfirmed, IncompatibleState, PreconditionFailed)
def roll_back(
    name: str, request: RollBack, response: Response, control: Control, caller: Caller, revisions: IfMatch
) -> OperationAnswer | RollbackPlan:
    """Put the application back to a snapshot: a new branch begins there, and its sources go on from there.

    With `dry_run`: the plan, with what every sink shows of later epochs and what becomes of it. A running application
    is stopped, and started again on the new branch.
    """
    if request.dry_run:
        response.status_code = status.HTTP_200_OK
        return control.rollback.plan(name, request)
    return control.rollback.roll_back(name, request, caller.name, revisions)
