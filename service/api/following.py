"""Answers that go on for as long as somebody listens: so many at a time, and no more.

Each is a connection, a task, and now and then a thread: without a bound a few clients with a loop in them would keep
all others waiting, who only want an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from epochal.errors import TooManyRequests

_RETRY_SECONDS = 5


class Followers:
    """Of one process; its event loop alone counts them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.following = 0

    def check(self) -> None:
        """Raises ``TooManyRequests`` when there is no place for a further one."""
        if self.following >= self.most:
            raise TooManyRequests(
                f"{self.most} streams of events and logs are being followed, as many as this control plane takes. Ask "
                "without following, or again when others have ended.",
                _RETRY_SECONDS,
            )


def followers_of(connection: HTTPConnection) -> Followers:
    """Those of the process that answers."""
    followers: Followers = connection.app.state.followers
    return followers


class FollowedResponse(StreamingResponse):
    """Counted while it is sent. Who may be too late should have asked :meth:`Followers.check` before."""

    def __init__(self, followers: Followers, content: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(content, media_type=media_type, headers={"cache-control": "no-store"})
        self._followers = followers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.following += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.following -= 1
