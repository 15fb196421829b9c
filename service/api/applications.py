"""``/v1/applications``: create, start, stop, restart, fork, roll back, delete; load."""

from __future__ import annotations

from fastapi import APIRouter, Body, Response, status

from epochal.errors import IncompatibleState, NameTaken, NotFound, PreconditionFailed, QuotaExceeded
from epochal.service.api.access import requires
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import BUILDING, FILES, SNAPSHOT, answers
from epochal.service.api.parameters import IfMatch, Paging, etag
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.rollbacks import NotConfirmed
from epochal.service.catalog.sink_targets import SharedTargets
from epochal.wire.applications import (
    ApplicationAnswer,
    ApplicationLag,
    CreateApplication,
    ForkApplication,
    LoadAnswer,
    PlacementAnswer,
    RestartApplication,
    StartApplication,
    StopApplication,
)
from epochal.wire.bodies import Page
from epochal.wire.operations import OperationAnswer
from epochal.wire.rollback import RollBack, RollbackPlan
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications", tags=["applications"])
lag_router = APIRouter(prefix="/v1/lags", tags=["applications"])


@router.post("", status_code=status.HTTP_201_CREATED)
@requires(Role.AUTHOR)
@answers(*BUILDING, NotFound, NameTaken, SharedTargets, QuotaExceeded)
def create_application(
    request: CreateApplication, response: Response, control: Control, caller: Caller, project: InProject
) -> ApplicationAnswer:
    """Analyse the artifact in a subprocess and register it under a name. Starts the application unless `start` is
    false."""
    return _tagged(response, control.applications.create(request, project, caller.name))


@router.get("")
@requires(Role.VIEWER)
def list_applications(page: Paging, node: Node, project: InProject) -> Page[ApplicationAnswer]:
    """List the applications of the project, by name."""
    return node.registered.applications(page, project)


@lag_router.get("")
@requires(Role.VIEWER)
def list_lags(page: Paging, node: Node, project: InProject) -> Page[ApplicationLag]:
    """List the lag of each source of all applications of the project, by name of the application: the records and files
    that no decided epoch has read, and the seconds since everything had been read. Also the rate of the application,
    and the sinks and the store that it waits for. Drivers report them every five seconds."""
    return node.load.lags(page, project)


@router.get("/{name}")
@requires(Role.VIEWER)
def get_application(name: str, response: Response, node: Node) -> ApplicationAnswer:
    """Return an application. `ETag` is its revision, for use in `If-Match` with calls that change it."""
    return _tagged(response, node.registered.application(name))


@router.delete("/{name}", status_code=status.HTTP_204_NO_CONTENT)
@requires(Role.AUTHOR)
@answers(PreconditionFailed)
def delete_application(name: str, control: Control, revisions: IfMatch) -> None:
    """Delete a stopped application. Its snapshots are kept while forks depend on them."""
    control.applications.delete(name, revisions)


@router.post("/{name}/start", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, IncompatibleState, NameTaken, PreconditionFailed, QuotaExceeded)
def start_application(
    name: str,
    control: Control,
    caller: Caller,
    revisions: IfMatch,
    request: StartApplication = Body(default=StartApplication()),
) -> OperationAnswer:
    """Run the latest version. The operation succeeds when the driver reports that it is running.

    With ``available_now``, or when all sources are bounded, the execution ends automatically, and the application
    becomes ``stopped`` or ``failed``. A drained application is refused (``incompatible-state``): it cannot continue.
    """
    return control.lifecycle.start(
        name,
        request.savepoint,
        caller.name,
        available_now=request.available_now,
        drain=request.drain,
        revisions=revisions,
    )


@router.post("/{name}/stop", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(NameTaken, PreconditionFailed)
def stop_application(
    name: str,
    control: Control,
    caller: Caller,
    revisions: IfMatch,
    request: StopApplication = Body(default=StopApplication()),
) -> OperationAnswer:
    """Finish and commit the current epoch, then stop."""
    return control.lifecycle.stop(name, request.savepoint, caller.name, revisions)


@router.post("/{name}/restart", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(IncompatibleState, PreconditionFailed, QuotaExceeded)
def restart_application(
    name: str,
    control: Control,
    caller: Caller,
    revisions: IfMatch,
    request: RestartApplication = Body(default=RestartApplication()),
) -> OperationAnswer:
    """Stop the application if it is running, then start it."""
    return control.lifecycle.restart(name, caller.name, revisions)


@router.post("/{name}/fork", status_code=status.HTTP_201_CREATED)
@requires(Role.AUTHOR)
@answers(*BUILDING, *SNAPSHOT, *FILES, NameTaken, SharedTargets, IncompatibleState, QuotaExceeded)
def fork_application(name: str, request: ForkApplication, control: Control, caller: Caller) -> ApplicationAnswer:
    """Create an application from a snapshot of this one, by default the latest. No state is copied."""
    return control.forks.fork(name, request, caller.name)


def _tagged(response: Response, application: ApplicationAnswer) -> ApplicationAnswer:
    response.headers["etag"] = etag(application.revision)
    return application


@router.get("/{name}/load")
@requires(Role.VIEWER)
def get_load(name: str, node: Node) -> LoadAnswer:
    """Load of the last minute: rows and seconds of work by operator, skew and stragglers; rows and lag by source, rows
    by sink; size of the state tables; and the decision of autoscaling."""
    return node.load.load(name)


@router.get("/{name}/placement")
@requires(Role.VIEWER)
def get_placement(name: str, node: Node) -> PlacementAnswer:
    """The machine of each subtask in the latest epoch, and the bytes of state that its tasks read."""
    return node.load.placement(name)


@router.post("/{name}/rollback", status_code=status.HTTP_202_ACCEPTED, responses={200: {"model": RollbackPlan}})
@requires(Role.OPERATOR)
@answers(*SNAPSHOT, *FILES, NotConfirmed, IncompatibleState, PreconditionFailed)
def roll_back(
    name: str, request: RollBack, response: Response, control: Control, caller: Caller, revisions: IfMatch
) -> OperationAnswer | RollbackPlan:
    """Return the application to an earlier snapshot: a new branch begins there, and the sources continue from there.

    With `dry_run`: the plan, with the later epochs that each sink shows and what happens to them. A running application
    is stopped, and started again on the new branch.
    """
    if request.dry_run:
        response.status_code = status.HTTP_200_OK
        return control.rollback.plan(name, request)
    return control.rollback.roll_back(name, request, caller.name, revisions)
