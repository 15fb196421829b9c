from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import IncompatibleState, PreconditionFailed, QuotaExceeded
from epochal.service.api.access import requires
from epochal.service.api.answers import BUILDING, FILES, SNAPSHOT, answers
from epochal.service.api.conditions import IfMatch
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.paging import Paging
from epochal.service.catalog.sink_targets import SharedTargets
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.tokens import Role
from epochal.wire.versions import CreateVersion, Rescale, VersionAnswer

router = APIRouter(prefix="/v1/applications/{name}/versions", tags=["versions"])
rescaling = APIRouter(prefix="/v1/applications/{name}", tags=["versions"])


@router.get("")
@requires(Role.VIEWER)
def list_versions(name: str, page: Paging, node: Node) -> Page[VersionAnswer]:
    """Newest first."""
    return node.registered.versions(name, page)


@router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.AUTHOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, IncompatibleState, SharedTargets, PreconditionFailed, QuotaExceeded)
def create_version(
    name: str, request: CreateVersion, control: Control, caller: Caller, revisions: IfMatch
) -> VersionAnswer:
    """Other code, parameters or configuration. It is compared with the state first. A running application goes on with
    it at an epoch boundary, without a restart (`operation` says when that is done, and goes back to the version before
    when its first epoch fails); a stopped one with its next start."""
    return control.versions.create(name, request, caller.name, revisions)


@rescaling.post("/rescale", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, IncompatibleState, SharedTargets, PreconditionFailed, QuotaExceeded)
def rescale_application(
    name: str, request: Rescale, control: Control, caller: Caller, revisions: IfMatch
) -> OperationAnswer:
    """Change the parallelism: of a running application at an epoch boundary, without a restart."""
    return control.versions.rescale(name, request, caller.name, revisions)
