"""``/v1/applications/{name}/logs``: the driver's log, its last lines or as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from epochal.errors import NotFound
from epochal.service.api.access import requires
from epochal.service.api.context import Control, ControlPlane
from epochal.service.runtime.logs.files import LogFollower, log_path, tail_and_follow
from epochal.wire.bodies import Name
from epochal.wire.executions import ExecutionAnswer
from epochal.wire.scopes import Scope

router = APIRouter(tags=["logs"])

MOST_LINES = 10_000
POLL_SECONDS = 0.25
_MEDIA_TYPE = "text/plain; charset=utf-8"


@router.get("/v1/applications/{name}/logs", summary="The driver's log", response_class=PlainTextResponse)
@requires(Scope.READ)
async def logs(
    control: Control,
    name: Name,
    lines: Annotated[int, Query(ge=0, le=MOST_LINES, alias="tail", description="So many last lines.")] = 200,
    follow: Annotated[bool, Query(description="Go on with what is appended, also by later attempts.")] = False,
    attempt: Annotated[int | None, Query(ge=1, description="Of this attempt; without it, of the latest.")] = None,
) -> Response:
    """Of the latest execution. With `attempt`, following ends with that attempt; without it, the next one follows."""
    path, number = await asyncio.to_thread(_log_of, control, name, attempt)
    text, follower = await asyncio.to_thread(tail_and_follow, path, lines)
    if not follow:
        return Response(text, media_type=_MEDIA_TYPE)
    following = _Following(control, name, only=attempt is not None)
    return StreamingResponse(
        following.stream(text, follower, number), media_type=_MEDIA_TYPE, headers={"cache-control": "no-store"}
    )


class _Following:
    def __init__(self, control: ControlPlane, application: str, only: bool) -> None:
        self._control = control
        self._application = application
        self._only = only

    async def stream(self, text: bytes, follower: LogFollower, attempt: int) -> AsyncIterator[bytes]:
        yield text
        while True:
            latest, running = await asyncio.to_thread(self._state, attempt)
            # Asked before reading: what an attempt that has ended wrote last is read still.
            for block in await asyncio.to_thread(_appended, follower):
                yield block
            if not running and self._only:
                return
            if not running and latest != attempt and not self._only:
                path, attempt = await asyncio.to_thread(_log_of, self._control, self._application, latest)
                follower = LogFollower(path)
                continue
            await asyncio.sleep(POLL_SECONDS)

    def _state(self, attempt: int) -> tuple[int, bool]:
        """The latest attempt, and whether the one that is followed still runs."""
        execution = _latest(self._control, self._application)
        running = any(item.number == attempt and item.state == "running" for item in execution.attempts)
        return execution.attempt, running


def _appended(follower: LogFollower) -> list[bytes]:
    return list(follower.appended())


def _log_of(control: ControlPlane, application: str, attempt: int | None) -> tuple[Path, int]:
    """Raises ``NotFound``: unknown application, never started, no such attempt."""
    execution = _latest(control, application)
    number = execution.attempt if attempt is None else attempt
    if attempt is not None and all(item.number != attempt for item in execution.attempts):
        numbers = ", ".join(str(item.number) for item in execution.attempts) or "none"
        raise NotFound(f"The latest execution of {application!r} has no attempt {attempt}; it has {numbers}.")
    return log_path(control.settings.logs_directory, application, execution.id, number), number


def _latest(control: ControlPlane, application: str) -> ExecutionAnswer:
    execution = control.executions.latest(application)
    if execution is None:
        raise NotFound(f"Application {application!r} was never started, and so has no log.")
    return execution
