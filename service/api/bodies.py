"""Request bodies: bounded in size, time and memory; large ones are parsed outside the event loop.

:class:`Bodies` runs inside the gate: no byte of a body is read before its caller is admitted.
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
from epochal.service.domain.setting_sections import Limits
from epochal.wire.problems import PREFIX, Problem

PUBLIC_BODY_BYTES: Final = 16 << 10
"""Maximum size of the body of a call without a token; no such endpoint reads one."""

Admit = Callable[[int], None]
"""Checks the size of a body before it is read. Raises ``StorageFull`` without enough space."""


class BodyRefused(HTTPException):
    """Ends the reading of a body. A subclass of ``HTTPException``, which the framework passes through."""

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
        super().__init__(413, f"The body of the request exceeds the maximum of {limit} bytes.")


class BodyIncomplete(BodyRefused):
    slug, title = "body-incomplete", "Body incomplete"

    def __init__(self, received: int) -> None:
        super().__init__(
            400,
            f"The connection ended after {received} bytes, before the end of the body. Repeat the request.",
        )


class BodyTooSlow(BodyRefused):
    slug, title = "request-too-slow", "Request too slow"

    def __init__(self, received: int) -> None:
        super().__init__(
            408,
            f"The body stalled or arrived too slowly after {received} bytes. Send it again; split a large body into "
            "parts.",
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
            f"The bodies of current requests use all of the {most} bytes of memory for bodies in this process. "
            "Nothing was done; send the request again later.",
            {"retry-after": "1"},
        )


class BodyMemory:
    """Memory for the bodies of all current requests of one event loop.

    Small bodies have a share of their own, which large ones cannot use up.
    """

    def __init__(self, limits: Limits) -> None:
        self._small_body = limits.small_body_bytes
        self._small_most, self._large_most = limits.small_bodies_bytes, limits.bodies_bytes
        self.small = self.large = 0
        """Bytes in use."""

    def check(self, declared: int) -> None:
        """Raise ``NoMemoryForBody`` if a body of this size does not fit now. Reserves nothing."""
        self._check(declared, 0)

    def grow(self, before: int, after: int) -> None:
        """Account for a body that grew from ``before`` to ``after`` bytes. Raises ``NoMemoryForBody`` and then
        reserves nothing."""
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
    """ASGI middleware. ``limit_of(path)``: maximum size of the body in bytes; ``limits``: its minimum rate, and the
    memory for all bodies; ``admit_to(path)``: a check that runs in a thread before the first byte is read."""

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
            # Without a body, a disconnect only means that the client has stopped listening.
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
    """A body, counted while it arrives: a declared length may be wrong or missing, and a client may disconnect or
    send slowly."""

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
        """Release the memory of the body after the request."""
        self._memory.give_back(self._received)
        self._received = 0

    async def _begin(self) -> None:
        """Run the checks once, before the first byte is requested: a client with ``Expect: 100-continue`` has sent
        nothing by then."""
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
        """Receive the next part. Only the time spent waiting for the client counts, not pauses of the app."""
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
"""Size from which a JSON body is parsed and validated in a thread."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def parse_large_bodies_in_threads(route: APIRoute) -> None:
    """Let a JSON route handle requests with large bodies in a thread with its own event loop."""
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
    """The C parser holds the interpreter lock until it ends, unless it calls Python; these hooks make it do so, and
    the event loop continues meanwhile."""

    async def json(self) -> Any:
        return json.loads(await self.body(), object_hook=_same, parse_int=_integer, parse_float=_number)


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _integer(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


def received(body: bytes) -> Receive:
    """A ``receive`` for a body that has been read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
