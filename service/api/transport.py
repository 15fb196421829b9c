"""What happens around every request, whatever it is for: its id, its body's size, its duration, unforeseen errors."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.errors import StorageFull
from epochal.logs import about
from epochal.service.api.problem_answer import problem_answer
from epochal.service.api.project_paths import called_path
from epochal.service.domain.settings import Limits
from epochal.wire.problems import PREFIX, Problem

logger = logging.getLogger("epochal.requests")

REQUEST_ID = "x-request-id"
SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNMATCHED = "(none)"
_KEY = re.compile(r"(/v1/applications/[^/]+/state/[^/]+/keys/).*", re.DOTALL)
"""The path of a look-up, and what is before its key."""

Admit = Callable[[int], None]
"""How large the body may be. Raises ``StorageFull`` when there is no space for it."""
Observe = Callable[[str, str, int, float, str | None], None]
"""Method, path template, status, seconds; the application whose state was looked up, where that has succeeded."""
LOOKUPS = frozenset(
    f"/v1/applications/{{name}}/state/{{table}}/{rest}" for rest in ("keys/{key:path}", "keys", "lookup")
)


class Transport:
    """ASGI middleware. ``limit_of(path)``: the largest body in bytes; ``limits``: how slowly it may
    come; ``admit_to(path)``: what is asked, in a thread, before the first byte of it is taken, if anything is."""

    def __init__(
        self,
        app: ASGIApp,
        limit_of: Callable[[str], int],
        observe: Observe,
        limits: Limits = Limits(),
        admit_to: Callable[[str], Admit | None] = lambda _path: None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._limit_of = limit_of
        self._admit_to = admit_to
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request
        answer = _Answer(send, request)
        with about(request=request):
            await self._answered(scope, receive, answer, headers, request)

    async def _answered(self, scope: Scope, receive: Receive, answer: _Answer, headers: Headers, request: str) -> None:
        limit = self._limit_of(scope["path"])
        began = time.perf_counter()
        try:
            declared = headers.get("content-length", "")
            if declared.isdigit() and int(declared) > limit:
                raise BodyTooLarge(limit)
            if "\0" in scope["path"] and "\0" in _KEY.sub(r"\1", scope["path"]):
                await self._refuse(_no_name(called_path(scope), request), answer, scope, receive)
                return
            body = _Whole(receive, limit, headers, self._limits, self._admit_to(scope["path"]))
            await self._app(scope, body, answer)
        except BodyRefused as error:
            await self._refuse(error.problem(called_path(scope), request), answer, scope, receive, error.headers)
        except Exception:
            # The last line of defence: the client learns nothing but the id under which the log has the trace.
            logger.exception("request %s: %s %s failed", request, scope["method"], called_path(scope))
            await self._refuse(_unforeseen(called_path(scope), request), answer, scope, receive)
        finally:
            route = getattr(scope.get("route"), "path", _UNMATCHED)
            found = route in LOOKUPS and answer.status in (200, 304)
            application = scope["path_params"]["name"] if found else None
            self._observe(scope["method"], route, answer.status, time.perf_counter() - began, application)

    @staticmethod
    async def _refuse(
        problem: Problem,
        answer: _Answer,
        scope: Scope,
        receive: Receive,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if answer.status == 0:
            await problem_answer(problem, headers)(scope, receive, answer)


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


class _Whole:
    """A body, counted while it arrives: a declared length may lie or be missing, and a client may go away in it, or
    send a byte now and then for as long as it likes."""

    def __init__(
        self,
        receive: Receive,
        limit: int,
        headers: Headers,
        limits: Limits,
        admit: Admit | None,
    ) -> None:
        self._receive = receive
        self._admit = admit
        self._limits = limits
        self._waited = 0.0
        self._limit = limit
        declared = headers.get("content-length", "")
        self._declared = int(declared) if declared.isdigit() else None
        self._received = 0
        # Where none was announced there is none: a client that goes away then has only stopped listening.
        self._ended = not self._declared and "transfer-encoding" not in headers

    async def __call__(self) -> Message:
        if self._admit is not None:
            await self._admitted(self._admit)
        message = await (self._receive() if self._ended else self._next())
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self._received > self._limit:
                raise BodyTooLarge(self._limit)
            self._ended = not message.get("more_body", False)
            if self._ended and self._declared is not None and self._received < self._declared:
                raise BodyIncomplete(self._received)
        elif not self._ended:
            raise BodyIncomplete(self._received)
        return message

    async def _admitted(self, admit: Admit) -> None:
        """Once, before anything was asked for: who sends ``Expect: 100-continue`` has sent nothing then."""
        self._admit = None
        if self._ended:
            return
        try:
            await run_in_threadpool(admit, self._limit if self._declared is None else self._declared)
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


class _Answer:
    """The answer, with the request's id in its headers. ``status`` is 0 until it has begun."""

    def __init__(self, send: Send, request: str) -> None:
        self._send = send
        self._request = request
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self._request
            headers["x-content-type-options"] = "nosniff"
        await self._send(message)


def _request_id(headers: Headers) -> str:
    proposed = headers.get(REQUEST_ID, "")
    return proposed if SAFE_REQUEST_ID.fullmatch(proposed) else secrets.token_hex(8)


def _no_name(path: str, request: str) -> Problem:
    """Databases disagree about the character NUL; so it does not come so far. In a key it is null."""
    return Problem(
        type=PREFIX + "no-such-path",
        title="Not Found",
        status=404,
        detail="There is nothing at this path; no name has the character NUL in it.",
        instance=path,
        request=request,
    )


def _unforeseen(path: str, request: str) -> Problem:
    return Problem(
        type=PREFIX + "internal",
        title="Internal error",
        status=500,
        detail=f"Something unforeseen happened in the control plane; its log has the details under request {request}.",
        instance=path,
        request=request,
    )
