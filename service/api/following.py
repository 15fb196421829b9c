"""Limits on streaming answers, which last as long as the client follows.

Each stream occupies a connection, a task and at times a thread: without a limit, a few looping clients would block all
others. A stream ends with the token or session of its caller.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from starlette.requests import HTTPConnection, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from epochal.errors import TooManyRequests
from epochal.service.api.gate import is_still_admitted

CHECK_SECONDS = 5.0
"""Minimum time between two checks of a stream's caller."""
_RETRY_SECONDS = 5


class Followers:
    """Streams of one process, counted by its event loop alone."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.following = 0

    def check(self) -> None:
        """Raise ``TooManyRequests`` if the maximum number of streams is in use."""
        if self.following >= self.most:
            raise TooManyRequests(
                f"{self.most} streams of events and logs are open, the maximum of this control plane. Call without "
                "following, or again when other streams have ended.",
                _RETRY_SECONDS,
            )


def followers_of(connection: HTTPConnection) -> Followers:
    """The counter of this process."""
    followers: Followers = connection.app.state.followers
    return followers


class Admission:
    """The right of the caller to go on receiving a stream."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._checked = time.monotonic()

    async def has_ended(self) -> bool:
        """Call after each part of the stream, and during pauses."""
        moment = time.monotonic()
        if moment - self._checked < CHECK_SECONDS:
            return False
        self._checked = moment
        return not await is_still_admitted(self._request)


class FollowedResponse(StreamingResponse):
    """A stream that is counted while it is sent. Call :meth:`Followers.check` first to refuse it early."""

    def __init__(self, followers: Followers, content: AsyncIterator[bytes], media_type: str) -> None:
        # Reverse proxies such as nginx would otherwise collect the parts of a stream.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(content, media_type=media_type, headers=headers)
        self._followers = followers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.following += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.following -= 1
