from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import IncompatibleState, NameTaken, PreconditionFailed
from epochal.service.api.access import requires
from epochal.service.api.answers import BUILDING, FILES, SNAPSHOT, answers
from epochal.service.api.conditions import IfMatch
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.catalog.sink_targets import SharedTargets
from epochal.wire.operations import OperationAnswer
from epochal.wire.tokens import Role
from epochal.wire.versions import Rekey

router = APIRouter(prefix="/v1/applications/{name}/rekey", tags=["versions"])


@router.post("", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.AUTHOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, NameTaken, IncompatibleState, SharedTargets, PreconditionFailed)
def rekey_application(
    name: str, request: Rekey, control: Control, caller: Caller, revisions: IfMatch
) -> OperationAnswer:
    """Write the state of a stopped application anew, with another `max_parallelism`, by an offline Spark job.

    The operation takes as long as reading and writing all state once; until it is done, the application cannot be
    started. The next start goes on from there, on a branch of its own; sources go on where they were, sinks as after a
    rollback to the head."""
    return control.rekeys.rekey(name, request, caller.name, revisions)
