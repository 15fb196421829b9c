"""``/v1/applications/{name}/logs``: the driver's log, its last lines or followed as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from epochal.errors import InvalidInput, NotFound, TooManyRequests
from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.following import Admission, FollowedResponse, followers_of
from epochal.service.api.openapi import STORE, answers
from epochal.service.queries.logs import FoundLog, LogService
from epochal.service.runtime.logs.files import LogFollower, last_lines_of, tail_and_follow
from epochal.wire.projects import FullName
from epochal.wire.tokens import Role

router = APIRouter(tags=["logs"])

MOST_LINES = 10_000
POLL_SECONDS = 0.25
_MEDIA_TYPE = "text/plain; charset=utf-8"


@router.get("/v1/applications/{name}/logs", summary="Driver log", response_class=PlainTextResponse)
@requires(Role.VIEWER)
@answers(InvalidInput, TooManyRequests, *STORE)
async def logs(
    request: Request,
    control: Control,
    name: FullName,
    lines: Annotated[int, Query(ge=0, le=MOST_LINES, alias="tail", description="Number of last lines.")] = 200,
    follow: Annotated[bool, Query(description="Follow the log, also of later attempts.")] = False,
    attempt: Annotated[int | None, Query(ge=1, description="Attempt; by default the latest.")] = None,
    branch: Annotated[
        str | None,
        Query(max_length=80, description="With `attempt`: its branch; by default, the newest with such an attempt."),
    ] = None,
) -> Response:
    """Log of the latest attempt, or of an earlier one, which epochs and executions name by `branch` and `attempt`. With
    `attempt`, following ends with that attempt; without it, the next attempt follows.

    The whole log is available while the driver's files are on this control plane's machine; of a terminated driver, the
    last 16 MB are kept for a month. Otherwise `not-found`, which names the machine that has the log.
    """
    followers = followers_of(request)
    if follow:
        followers.check()
    found = await asyncio.to_thread(control.driver_logs.find, name, attempt, branch)
    text, follower = await asyncio.to_thread(_end, found, lines)
    if not follow:
        return Response(text, media_type=_MEDIA_TYPE)
    following = _Following(control.driver_logs, name, only=attempt is not None)
    return FollowedResponse(followers, following.stream(text, follower, found, Admission(request)), _MEDIA_TYPE)


class _Following:
    def __init__(self, logs: LogService, application: str, only: bool) -> None:
        self._logs = logs
        self._application = application
        self._only = only

    async def stream(
        self, text: bytes, follower: LogFollower, followed: FoundLog, admission: Admission
    ) -> AsyncIterator[bytes]:
        execution, attempt = followed.execution, followed.attempt
        yield text
        while not await admission.has_ended():
            latest, running = await asyncio.to_thread(self._state, execution, attempt)
            # Checked before reading, so that the last lines of an ended attempt are still read.
            for block in await asyncio.to_thread(_appended, follower):
                yield block
            if not running and self._only:
                return
            if not running and latest != attempt:
                try:
                    found = await asyncio.to_thread(self._logs.find, self._application, latest)
                except NotFound as error:
                    yield f"{error.message}\n".encode()
                    return
                execution, attempt, follower = found.execution, found.attempt, LogFollower(found.path)
                if found.kept is not None:
                    yield found.kept
                continue
            await asyncio.sleep(POLL_SECONDS)

    def _state(self, execution: str, attempt: int) -> tuple[int, bool]:
        """The latest attempt, and whether the followed attempt is still running."""
        latest = self._logs.latest(self._application)
        attempts = latest.attempts if latest.id == execution else ()
        return latest.attempt, any(item.number == attempt and item.state == "running" for item in attempts)


def _end(found: FoundLog, lines: int) -> tuple[bytes, LogFollower]:
    if found.kept is not None:
        return last_lines_of(found.kept, lines), LogFollower(found.path)
    return tail_and_follow(found.path, lines)


def _appended(follower: LogFollower) -> list[bytes]:
    return list(follower.appended())
