"""Request bodies: bounded in size, in time and in memory, and parsed off the event loop where they are large.

:class:`Bodies` stands inside of the gate: no byte of a body is taken before its caller may make the call.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute, request_response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.errors import StorageFull
from epochal.service.api.access import access_of
from epochal.service.domain.permissions import Access
from epochal.service.domain.settings import Limits
from epochal.wire.problems import PREFIX, Problem

PUBLIC_BODY_BYTES: Final = 16 << 10
"""Largest body of a call that needs no token; no such endpoint reads one."""

Admit = Callable[[int], None]
"""How large the body may be. Raises ``StorageFull`` when there is no space for it."""


class BodyRefused(HTTPException):
    """Stops the reading of a body, wherever it is read: frameworks let their own kind of exception through."""

    slug: ClassVar[str]
    title: ClassVar[str]

    def problem(self, instance: str, request: str) -> Problem:
        return Problem(
            type=PREFIX + self.slug,
            title=self.title,
            status=self.status_code,
            detail=self.detail,
            instance=instance,
            request=request,
        )


class BodyTooLarge(BodyRefused):
    slug, title = "body-too-large", "Body too large"

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The request's body is larger than the {limit} bytes that are taken here.")


class BodyIncomplete(BodyRefused):
    slug, title = "body-incomplete", "Body incomplete"

    def __init__(self, received: int) -> None:
        super().__init__(
            400,
            f"The connection ended after {received} bytes of the body, before its end. Repeat the request.",
        )


class BodyTooSlow(BodyRefused):
    slug, title = "request-too-slow", "Request too slow"

    def __init__(self, received: int) -> None:
        super().__init__(
            408,
            f"After {received} bytes of the body nothing came for too long, or it all came too slowly. Send it again; "
            "what is large in parts.",
            {"connection": "close"},
        )


class NoSpaceForBody(BodyRefused):
    slug, title = StorageFull.slug, "Storage full"

    def __init__(self, error: StorageFull) -> None:
        super().__init__(507, error.message, {"connection": "close"})


class NoMemoryForBody(BodyRefused):
    slug, title = "too-many-bodies", "Too many bodies"

    def __init__(self, most: int) -> None:
        super().__init__(
            503,
            f"The bodies of the requests in progress fill the {most} bytes of memory that this process has for them. "
            "Nothing was done; send the request again in a moment.",
            {"retry-after": "1"},
        )


class BodyMemory:
    """Memory for the bodies of all requests in progress of one event loop.

    Small bodies have a share of their own, so that large ones cannot use it up.
    """

    def __init__(self, limits: Limits) -> None:
        self._small_body = limits.small_body_bytes
        self._small_most, self._large_most = limits.small_bodies_bytes, limits.bodies_bytes
        self.small = self.large = 0
        """Bytes in use."""

    def check(self, declared: int) -> None:
        """Raises ``NoMemoryForBody`` when a body of this size does not fit now; takes nothing."""
        self._check(declared, 0)

    def grow(self, before: int, after: int) -> None:
        """A body has grown from ``before`` to ``after`` bytes. Raises ``NoMemoryForBody``; then nothing is taken."""
        self._check(after, before)
        self.give_back(before)
        if after <= self._small_body:
            self.small += after
        else:
            self.large += after

    def give_back(self, size: int) -> None:
        if size <= self._small_body:
            self.small -= size
        else:
            self.large -= size

    def _check(self, size: int, own: int) -> None:
        if size <= self._small_body:
            if self.small - own + size > self._small_most:
                raise NoMemoryForBody(self._small_most)
        elif self.large + size - (own if own > self._small_body else 0) > self._large_most:
            raise NoMemoryForBody(self._large_most)


class Bodies:
    """ASGI middleware. ``limit_of(path)``: the largest body in bytes; ``limits``: how slowly it may come, and how much
    memory all bodies may use; ``admit_to(path)``: what is asked, in a thread, before its first byte is taken."""

    def __init__(
        self,
        app: ASGIApp,
        limit_of: Callable[[str], int],
        limits: Limits = Limits(),
        admit_to: Callable[[str], Admit | None] = lambda _path: None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._limit_of = limit_of
        self._admit_to = admit_to
        self._memory = BodyMemory(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        size = int(declared) if declared.isdigit() else None
        if not size and "transfer-encoding" not in headers:
            # A client that goes away then has only stopped listening.
            await self._app(scope, receive, send)
            return
        limit = self._limit_of(scope["path"])
        if access_of(scope.get("endpoint")) is Access.PUBLIC:
            limit = min(limit, PUBLIC_BODY_BYTES)
        if size is not None and size > limit:
            raise BodyTooLarge(limit)
        body = _Whole(receive, limit, size, self._limits, self._admit_to(scope["path"]), self._memory)
        try:
            await self._app(scope, body, send)
        finally:
            body.release()


class _Whole:
    """A body, counted while it arrives: a declared length may lie or be missing, and a client may go away in it, or
    send a byte now and then for as long as it likes."""

    def __init__(
        self,
        receive: Receive,
        limit: int,
        declared: int | None,
        limits: Limits,
        admit: Admit | None,
        memory: BodyMemory,
    ) -> None:
        self._receive = receive
        self._admit = admit
        self._limits = limits
        self._waited = 0.0
        self._limit = limit
        self._declared = declared
        self._memory = memory
        self._received = 0
        self._begun = self._ended = False

    async def __call__(self) -> Message:
        if not self._begun:
            await self._begin()
        message = await (self._receive() if self._ended else self._next())
        if message["type"] == "http.request":
            received = self._received + len(message.get("body", b""))
            if received > self._limit:
                raise BodyTooLarge(self._limit)
            self._memory.grow(self._received, received)
            self._received = received
            self._ended = not message.get("more_body", False)
            if self._ended and self._declared is not None and self._received < self._declared:
                raise BodyIncomplete(self._received)
        elif not self._ended:
            raise BodyIncomplete(self._received)
        return message

    def release(self) -> None:
        """The request is over, and the memory of its body free."""
        self._memory.give_back(self._received)
        self._received = 0

    async def _begin(self) -> None:
        """Once, before the first byte is requested: a client with ``Expect: 100-continue`` has sent nothing by then."""
        self._begun = True
        if self._declared is not None:
            self._memory.check(self._declared)
        if self._admit is None:
            return
        try:
            await run_in_threadpool(self._admit, self._limit if self._declared is None else self._declared)
        except StorageFull as error:
            raise NoSpaceForBody(error) from None

    async def _next(self) -> Message:
        """Only the time counts that is spent waiting for the client: the app may be slow in asking for more."""
        pause = self._limits.body_pause_seconds
        left = pause + self._received / self._limits.body_bytes_per_second - self._waited
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(pause, left))):
                return await self._receive()
        except TimeoutError:
            raise BodyTooSlow(self._received) from None
        finally:
            self._waited += time.monotonic() - began


LARGE_BODY_BYTES: Final = 64 << 10
"""From this size on a JSON body is parsed and validated in a thread."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def parse_large_bodies_in_threads(route: APIRoute) -> None:
    """Let a route that takes JSON handle requests with large bodies in a thread with an event loop of its own."""
    if route.body_field is not None:
        route.app = request_response(_by_size(route.get_route_handler()))


def _by_size(handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) <= LARGE_BODY_BYTES:
            return await handler(request)
        body = await request.body()
        if len(body) <= LARGE_BODY_BYTES:
            return await handler(request)
        return await run_in_threadpool(_in_own_loop, handler, _LargeRequest(request.scope, received(body)))

    return handle


def _in_own_loop(handler: Handler, request: Request) -> Response:
    return asyncio.run(handler(request))


class _LargeRequest(Request):
    """The C parser holds the interpreter's lock until it is done, unless it calls Python now and then, as these hooks
    let it: then the event loop goes on meanwhile."""

    async def json(self) -> Any:
        return json.loads(await self.body(), object_hook=_same, parse_int=_integer, parse_float=_number)


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _integer(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


def received(body: bytes) -> Receive:
    """A ``receive`` of a body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
