"""What a pod calls that a control plane keeps for work, with the token that the cluster has made for it.

Only the control plane that keeps it knows it. Every call may be repeated; see :mod:`epochal.wire.internal_api`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, status
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import FileResponse, Response

from epochal.errors import LauncherUnavailable, Unauthenticated
from epochal.service.api.access import for_pods
from epochal.service.api.gate import drivers_of
from epochal.service.api.openapi import answers
from epochal.service.runtime.kept_pods import KeptPods
from epochal.wire.bodies import Sha256
from epochal.wire.internal_api import CONTROL_PLANES_HEADER, WAIT_SECONDS, TakenFor

router = APIRouter(prefix="/internal/v1/pods/{pod}", tags=["internal"])

_LOOK_SECONDS = 0.1
_WRITTEN_SECONDS = 2.0
"""So often the catalog is asked whether a spare has become somebody's, beside when it has just been taken."""

PodName = Annotated[str, Path(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


async def _kept(pod: PodName, connection: HTTPConnection) -> KeptPods:
    kept = drivers_of(connection).kept_pods
    await run_in_threadpool(kept.check, pod, connection.state.pod)
    return kept


Kept = Annotated[KeptPods, Depends(_kept)]


@router.get("/work", response_class=Response, responses={200: {"content": {"application/json": {}}}, 204: {}})
@for_pods
@answers(LauncherUnavailable)
async def read_work(
    pod: PodName,
    kept: Kept,
    connection: HTTPConnection,
    ready: Annotated[bool, Query()] = False,
    seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS)] = 0.0,
) -> Response:
    """What the pod is to do. The answer is held until there is something, or until the time is over."""
    if ready:
        await run_in_threadpool(kept.says_ready, pod)
    until = time.monotonic() + seconds
    while (work := await run_in_threadpool(kept.work, pod)) is None:
        if time.monotonic() >= until:
            await _kept(pod, connection)
            return Response(status_code=status.HTTP_204_NO_CONTENT)
        await asyncio.sleep(_LOOK_SECONDS)
    return Response(work, media_type="application/json")


@router.get("/attempt", response_model=TakenFor, responses={204: {}})
@for_pods
@answers(LauncherUnavailable)
async def read_attempt(
    pod: PodName,
    connection: HTTPConnection,
    response: Response,
    ready: Annotated[bool, Query()] = False,
    seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS)] = 0.0,
) -> TakenFor | Response:
    """Whose driver the pod is now. The answer is held until it is one's, or until the time is over, where it is kept
    here; everybody else knows only what has been written down."""
    drivers = drivers_of(connection)
    identity, kept = connection.state.pod, drivers.kept_pods
    if pod != identity.name:
        raise Unauthenticated(f"The pod {identity.namespace}/{identity.name} is another one.")
    response.headers[CONTROL_PLANES_HEADER] = " ".join(await drivers.control_planes())
    until, look = time.monotonic() + seconds, 0.0
    while True:
        if time.monotonic() >= look or await run_in_threadpool(kept.is_taken, pod):
            look = time.monotonic() + _WRITTEN_SECONDS
            name = await drivers.run(drivers.attempt_of, identity)
            if name is not None:
                return TakenFor(execution=name.execution, attempt=name.attempt)
        await run_in_threadpool(kept.check, pod, identity)
        if ready:
            await run_in_threadpool(kept.says_ready, pod)
        if time.monotonic() >= until:
            return Response(status_code=status.HTTP_204_NO_CONTENT, headers=dict(response.headers))
        await asyncio.sleep(_LOOK_SECONDS)


@router.get("/wanted", status_code=status.HTTP_204_NO_CONTENT)
@for_pods
@answers(LauncherUnavailable)
async def is_wanted(pod: PodName, kept: Kept) -> None:
    """Whether somebody still waits for the pod's answer."""


@router.get("/artifacts/{sha256}", response_class=FileResponse)
@for_pods
@answers(LauncherUnavailable)
async def read_artifact(pod: PodName, sha256: Sha256, kept: Kept) -> FileResponse:
    """The bytes of code that is part of the pod's work."""
    path = await run_in_threadpool(kept.code, pod, sha256)
    return FileResponse(path, media_type="application/octet-stream")


@router.put("/answer", status_code=status.HTTP_204_NO_CONTENT)
@for_pods
@answers(LauncherUnavailable)
async def put_answer(pod: PodName, kept: Kept, request: Request) -> None:
    """The first one counts. It is the word of a process in which an author's code has run."""
    draft = await run_in_threadpool(kept.draft, pod)
    try:
        with draft.open("wb") as file:
            async for part in request.stream():
                await run_in_threadpool(file.write, part)
        await run_in_threadpool(kept.take, pod, draft)
    finally:
        draft.unlink(missing_ok=True)
