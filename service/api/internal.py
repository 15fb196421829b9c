"""Calls of drivers, with the token of their own execution and attempt: the catalog contract, one call each.

Every call may be repeated; ``epochal.wire.internal_api`` defines requests and answers. Calls of an ended attempt are
rejected (``Fenced``) by the gate, or by the transaction of endpoints marked ``fenced_within``. All endpoints and
dependencies are ``async``: FastAPI would run others in the threads that all requests share.

``epochal up`` serves these calls in a separate process (``internal_app.py``); an app without an internal port serves
them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar, TypeVarTuple

from fastapi import APIRouter, Depends, Header, Path, Query, status
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import FileResponse, Response

from epochal.contracts.catalog import DriverStatus, EpochRecord, OptimizeResult, RecoveryPoint
from epochal.contracts.measurements import DriverReport
from epochal.driver.orders import DriverOrders
from epochal.errors import (
    ArtifactError,
    EnvironmentProblem,
    InvalidInput,
    LauncherUnavailable,
    NotFound,
    SnapshotError,
)
from epochal.service.api.access import fenced_within, for_drivers, for_pods, public
from epochal.service.api.gate import drivers_of
from epochal.service.api.openapi import STORE, answers
from epochal.service.catalog.branch_writer import ForeignManifest
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.runtime.drivers import DriverService
from epochal.wire.bodies import EpochNumber, Sha256
from epochal.wire.internal_api import (
    CALLS_HEADER,
    LISTEN_SECONDS,
    PROTOCOL,
    PROTOCOL_HEADER,
    RESULT_HEADER,
    VERSION_HEADER,
    AbortEpoch,
    CompleteDirective,
    DirectiveProgress,
    Directives,
    FetchOrders,
    FinishAttempt,
    NewestDirective,
    OpenEpoch,
    PrepareEpoch,
    understood,
)

health_router = APIRouter(tags=["internal"])
router = APIRouter(prefix="/internal/v1/executions/{execution}/attempts/{attempt}", tags=["internal"])


Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

AttemptNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


SpokenProtocol = Annotated[int, Header(alias=PROTOCOL_HEADER, ge=0)]
CallsThrough = Annotated[int | None, Header(alias=CALLS_HEADER, ge=0, le=2**63 - 1)]
SoftwareVersion = Annotated[str, Header(alias=VERSION_HEADER, max_length=64)]


DirectiveResult = Annotated[str | None, Header(alias=RESULT_HEADER, max_length=4096)]


def _result(text: str) -> OptimizeResult:
    try:
        return OptimizeResult.model_validate_json(text)
    except ValidationError:
        raise InvalidInput(f"The header {RESULT_HEADER} is not the result of a directive.") from None


@dataclass(frozen=True)
class Call:
    """The catalog of one attempt, and the threads that use it."""

    catalog: SqlCatalog
    drivers: DriverService

    async def run(self, method: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return await self.drivers.run(method, *arguments)


async def _call(execution: str, attempt: AttemptNumber, connection: HTTPConnection) -> Call:
    drivers = drivers_of(connection)
    return Call(drivers.catalog(execution, attempt), drivers)


Guarded = Annotated[Call, Depends(_call)]


@health_router.get("/healthz", status_code=status.HTTP_204_NO_CONTENT)
@public
async def healthz() -> None:
    """The process answers."""


@router.get("/artifacts/{sha256}", response_class=FileResponse)
@for_drivers
@answers(ArtifactError, SnapshotError, EnvironmentProblem, *STORE)
async def read_artifact(execution: str, sha256: Sha256, call: Guarded) -> FileResponse:
    """Return the code of a version of the execution's application."""
    artifact = await call.run(call.drivers.artifact, execution, sha256)
    # The store may be slow, and the threads for drivers' calls are few: a blocked thread delays other drivers.
    path = await run_in_threadpool(call.drivers.file, artifact)
    return FileResponse(path, media_type="application/octet-stream")


@router.post("/orders")
@for_pods
@answers(LauncherUnavailable)
async def fetch_orders(
    execution: str, attempt: AttemptNumber, body: FetchOrders, connection: HTTPConnection
) -> DriverOrders:
    """Return the orders of the driver in the calling pod. They contain no token: the driver generates it and sends
    its hash."""
    drivers = drivers_of(connection)
    return await drivers.run(drivers.orders, execution, attempt, connection.state.pod, body.token_sha256)


@router.post("/begin")
@for_drivers
@fenced_within
async def begin_attempt(call: Guarded) -> RecoveryPoint:
    """R1, R2."""
    return await call.run(call.catalog.begin_attempt)


@router.post("/epochs", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
async def open_epoch(body: OpenEpoch, call: Guarded) -> None:
    """E1."""
    await call.run(call.catalog.open_epoch, body.epoch, body.parent)


@router.get("/epochs/{epoch}")
@for_drivers
async def read_epoch(epoch: EpochNumber, call: Guarded) -> EpochRecord:
    record = await call.run(call.catalog.epoch, epoch)
    if record is None:
        raise NotFound(f"There is no epoch {epoch}.")
    return record


@router.post("/epochs/{epoch}/prepare", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
@answers(ForeignManifest)
async def prepare_epoch(
    epoch: EpochNumber, body: PrepareEpoch, call: Guarded, calls_through: CallsThrough = None
) -> None:
    """E4, the commit decision."""
    terms = body.terms.model_copy(update={"calls_through": calls_through})
    await call.run(call.catalog.prepare_epoch, epoch, body.parent, body.manifest, body.counts, terms)


@router.post("/epochs/{epoch}/commit", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
async def commit_epoch(epoch: EpochNumber, call: Guarded) -> None:
    """E6."""
    await call.run(call.catalog.commit_epoch, epoch)


@router.post("/epochs/{epoch}/abort", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
async def abort_epoch(epoch: EpochNumber, body: AbortEpoch, call: Guarded) -> None:
    await call.run(call.catalog.abort_epoch, epoch, body.failure)


@router.post("/heartbeat")
@for_drivers
@fenced_within
async def heartbeat(
    body: DriverStatus, call: Guarded, protocol: SpokenProtocol = PROTOCOL, version: SoftwareVersion = "unknown"
) -> Directives:
    if not understood(protocol):
        await call.run(call.catalog.replace_driver, body, version)
    directives = await call.run(call.catalog.heartbeat, body)
    return Directives(directives=directives, control_planes=await call.drivers.control_planes())


@router.get("/directives")
@for_drivers
@fenced_within
async def listen_for_directives(
    execution: str,
    attempt: AttemptNumber,
    call: Guarded,
    after: Annotated[str, Query(max_length=32)] = "",
    seconds: Annotated[float, Query(ge=0, le=LISTEN_SECONDS)] = LISTEN_SECONDS,
) -> NewestDirective:
    """Answered when a directive newer than ``after`` exists, or after the timeout. The directive itself is part of
    the next heartbeat, which the driver sends then."""
    return NewestDirective(newest=await call.drivers.directive(execution, attempt, after, seconds))


@router.get("/calls", response_class=Response, responses={200: {"content": {"application/json": {}}}})
@for_drivers
async def read_calls(
    execution: str,
    attempt: AttemptNumber,
    call: Guarded,
    after: Annotated[int, Query(ge=0)],
    through: Annotated[int | None, Query(ge=0)] = None,
    seconds: Annotated[float, Query(ge=0, le=LISTEN_SECONDS)] = 0.0,
) -> Response:
    """Return the first calls of the application's entries with numbers above ``after``. Without ``through``, the
    answer waits until calls exist, or until the timeout."""
    page = await call.drivers.calls(execution, attempt, after, through, seconds)
    return Response(page, media_type="application/json")


@router.post("/report", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
async def report(body: DriverReport, call: Guarded) -> None:
    """Measurements of the attempt, for metrics. Sent periodically; a report may be lost."""
    await call.run(call.catalog.report, body)


@router.post("/directives/{directive}", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
async def complete_directive(
    directive: str, body: CompleteDirective, call: Guarded, result: DirectiveResult = None
) -> None:
    found = None if result is None else _result(result)
    await call.run(call.catalog.complete, directive, body.head, body.failure, found)


@router.post("/directives/{directive}/progress", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
async def note_progress(directive: str, body: DirectiveProgress, call: Guarded) -> None:
    """Progress of a directive, for display. Sent once; a note may be lost."""
    await call.run(call.catalog.note_progress, directive, body.progress)


@router.post("/finish", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
@fenced_within
async def finish_attempt(execution: str, body: FinishAttempt, call: Guarded) -> None:
    await call.run(call.catalog.finish, body.failure)
    call.drivers.finished(execution)
