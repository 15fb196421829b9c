"""Versions of an application: upgrades, rescaling, rekeying, preflight."""

from __future__ import annotations

from fastapi import APIRouter, Response, status

from epochal.errors import Conflict, IncompatibleState, NameTaken, NotFound, PreconditionFailed, QuotaExceeded
from epochal.service.api.access import requires
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import BUILDING, FILES, SNAPSHOT, answers
from epochal.service.api.parameters import IfMatch, Paging
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.sink_targets import SharedTargets
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.preflight import Preflight, PreflightAnswer
from epochal.wire.tokens import Role
from epochal.wire.versions import CreateVersion, Rekey, Rescale, VersionAnswer

router = APIRouter(prefix="/v1/applications/{name}", tags=["versions"])
preflight_router = APIRouter(prefix="/v1/preflight", tags=["versions"])


@router.get("/versions")
@requires(Role.VIEWER)
def list_versions(name: str, page: Paging, node: Node) -> Page[VersionAnswer]:
    """List versions, newest first."""
    return node.registered.versions(name, page)


@router.post("/versions", status_code=status.HTTP_201_CREATED)
@requires(Role.AUTHOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, IncompatibleState, SharedTargets, PreconditionFailed, QuotaExceeded)
def create_version(
    name: str, request: CreateVersion, control: Control, caller: Caller, revisions: IfMatch
) -> VersionAnswer:
    """Create a version with other code, parameters or configuration. It is compared with the state first. A running
    application changes to it at an epoch boundary, without a restart: `operation` shows when, and the application
    returns to the previous version if its first epoch fails. A stopped application uses it at its next start."""
    return control.versions.create(name, request, caller.name, revisions)


@router.post("/rescale", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, IncompatibleState, SharedTargets, PreconditionFailed, QuotaExceeded)
def rescale_application(
    name: str, request: Rescale, control: Control, caller: Caller, revisions: IfMatch
) -> OperationAnswer:
    """Change the parallelism of the application, of single operators, or both; of a running application at an epoch
    boundary, without a restart."""
    return control.versions.rescale(name, request, caller.name, revisions)


@router.post("/rekey", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.AUTHOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, NameTaken, IncompatibleState, SharedTargets, PreconditionFailed)
def rekey_application(
    name: str, request: Rekey, control: Control, caller: Caller, revisions: IfMatch
) -> OperationAnswer:
    """Rewrite the state of a stopped application with another `max_parallelism`, by an offline Spark job.

    The operation takes as long as reading and writing all state once; the application cannot be started until it is
    done. The next start continues on a new branch; sources continue where they were, sinks as after a rollback to the
    head.
    """
    return control.rekeys.rekey(name, request, caller.name, revisions)


@preflight_router.post(
    "",
    response_model=None,
    responses={
        status.HTTP_200_OK: {"model": PreflightAnswer, "description": "Effects of an upgrade."},
        status.HTTP_202_ACCEPTED: {
            "model": OperationAnswer,
            "description": "With `trial`: an operation, whose `result` has the same and the outcome of the trial.",
        },
    },
)
@requires(Role.AUTHOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, NotFound, Conflict, IncompatibleState, SharedTargets)
def check_version(
    request: Preflight, control: Control, caller: Caller, response: Response, project: InProject
) -> PreflightAnswer | OperationAnswer:
    """Build a version and compare it with a snapshot without deploying it: state that would be kept, added or lost, and
    refusals.

    Executes the author's code, like a submission; changes nothing.
    """
    if request.trial is None:
        return control.preflight.check(request, project)
    response.status_code = status.HTTP_202_ACCEPTED
    return control.preflight.try_out(request, project, caller.name)
