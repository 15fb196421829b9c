"""Calls of pods that a control plane holds for work, with the token that the cluster issued for the pod.

Only the control plane that holds a pod serves it. Every call may be repeated; see :mod:`epochal.wire.internal_api`.
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
from epochal.service.runtime.kept_pods import PodDeskClient
from epochal.wire.bodies import Sha256
from epochal.wire.internal_api import CONTROL_PLANES_HEADER, WAIT_SECONDS, TakenFor

router = APIRouter(prefix="/internal/v1/pods/{pod}", tags=["internal"])

_CATALOG_SECONDS = 2.0
"""Interval between look-ups of a warm driver's attempt in the catalog."""
_RECORDED_SECONDS = 0.1
"""The same interval once the pod was taken, which is recorded a moment later."""

PodName = Annotated[str, Path(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


def _desk(connection: HTTPConnection) -> PodDeskClient:
    return drivers_of(connection).pod_desk


Desk = Annotated[PodDeskClient, Depends(_desk)]


@router.get("/work", response_class=Response, responses={200: {"content": {"application/json": {}}}, 204: {}})
@for_pods
@answers(LauncherUnavailable)
async def read_work(
    pod: PodName,
    desk: Desk,
    connection: HTTPConnection,
    ready: Annotated[bool, Query()] = False,
    seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS)] = 0.0,
) -> Response:
    """The work of the pod. The answer is delayed until there is work, or until the time is over."""
    work = await desk.work(pod, connection.state.pod, ready, seconds)
    if work is None:
        return Response(status_code=status.HTTP_204_NO_CONTENT)
    return Response(work, media_type="application/json")


@router.get("/attempt", response_model=TakenFor, responses={204: {}})
@for_pods
@answers(LauncherUnavailable)
async def read_attempt(
    pod: PodName,
    desk: Desk,
    connection: HTTPConnection,
    response: Response,
    ready: Annotated[bool, Query()] = False,
    seconds: Annotated[float, Query(ge=0, le=WAIT_SECONDS)] = 0.0,
) -> TakenFor | Response:
    """The attempt whose driver the pod has become. Where the pod is held, the answer is delayed until it has become
    one, or until the time is over. Other control planes answer with what the catalog has recorded."""
    drivers = drivers_of(connection)
    identity = connection.state.pod
    if pod != identity.name:
        raise Unauthenticated(f"The pod {identity.namespace}/{identity.name} is another pod.")
    response.headers[CONTROL_PLANES_HEADER] = " ".join(await drivers.control_planes())
    until = time.monotonic() + seconds
    while True:
        name = await drivers.run(drivers.attempt_of, identity)
        if name is not None:
            return TakenFor(execution=name.execution, attempt=name.attempt)
        left = max(0.0, until - time.monotonic())
        is_taken = await desk.is_taken(pod, identity, ready, min(left, _CATALOG_SECONDS))
        if time.monotonic() >= until:
            return Response(status_code=status.HTTP_204_NO_CONTENT, headers=dict(response.headers))
        if is_taken:
            await asyncio.sleep(_RECORDED_SECONDS)


@router.get("/needed", status_code=status.HTTP_204_NO_CONTENT)
@for_pods
@answers(LauncherUnavailable)
async def is_needed(pod: PodName, desk: Desk, connection: HTTPConnection) -> None:
    """Return whether the control plane still waits for the pod's answer."""
    await desk.check(pod, connection.state.pod)


@router.get("/artifacts/{sha256}", response_class=FileResponse)
@for_pods
@answers(LauncherUnavailable)
async def read_artifact(pod: PodName, sha256: Sha256, desk: Desk, connection: HTTPConnection) -> FileResponse:
    """The bytes of code that is part of the pod's work."""
    await desk.check(pod, connection.state.pod)
    path = await run_in_threadpool(desk.code, pod, sha256)
    return FileResponse(path, media_type="application/octet-stream")


@router.put("/answer", status_code=status.HTTP_204_NO_CONTENT)
@for_pods
@answers(LauncherUnavailable)
async def put_answer(pod: PodName, desk: Desk, connection: HTTPConnection, request: Request) -> None:
    """The first answer counts. It comes from a process in which an author's code has run."""
    await desk.check(pod, connection.state.pod)
    draft = await run_in_threadpool(desk.draft, pod)
    try:
        with draft.open("wb") as file:
            async for part in request.stream():
                await run_in_threadpool(file.write, part)
        await desk.answer(pod, connection.state.pod, draft)
    finally:
        draft.unlink(missing_ok=True)
