from __future__ import annotations

from fastapi import APIRouter, status

from epochal.service.context import Control
from epochal.service.rekey.schemas import Rekey
from epochal.service.security import Scope, requires
from epochal.service.security.gate import Caller
from epochal.service.versions.schemas import VersionAnswer

router = APIRouter(prefix="/v1/applications/{name}/rekey", tags=["versions"])


@router.post("", status_code=status.HTTP_201_CREATED)
@requires(Scope.OPERATE)
def rekey_application(name: str, request: Rekey, control: Control, caller: Caller) -> VersionAnswer:
    """Write the state of a stopped application anew, with another `max_parallelism`, by an offline Spark job.

    It answers when that is done, which takes as long as reading and writing all state once. The next start goes on from
    there, on a branch of its own; sources go on where they were, sinks as after a rollback to the head."""
    return control.rekeys.rekey(name, request, caller.name)
