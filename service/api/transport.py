"""Handling of every request: id, caller's address, duration, unexpected errors."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.logs import about
from epochal.service.api.bodies import BodyRefused
from epochal.service.api.problems import problem_answer
from epochal.service.api.project_paths import called_path
from epochal.service.domain.proxies import Network, TrustedProxies
from epochal.wire.problems import PREFIX, Problem

logger = logging.getLogger("epochal.requests")

REQUEST_ID = "x-request-id"
FORWARDED_FOR = b"x-forwarded-for"
SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNMATCHED = "(none)"
_KEY = re.compile(r"(/v1/applications/[^/]+/state/[^/]+/keys/).*", re.DOTALL)
"""Path of a look-up; the group is the part before the key."""

Observe = Callable[[str, str, int, float, str | None], None]
"""Method, path template, status, seconds; the application whose state was looked up, if successful."""
LOOKUPS = frozenset(
    f"/v1/applications/{{name}}/state/{{table}}/{rest}" for rest in ("keys/{key:path}", "keys", "lookup")
)


_DISCARDED: Final = 64 << 10
"""Maximum number of unread bytes of a body that are discarded to reuse the connection."""
_LINGER_SECONDS, _LINGER_PAUSE_SECONDS = 2.0, 0.5
"""Maximum time, and maximum pause of the client, for discarding the rest of a refused body before the connection is
closed. A client that is still sending would otherwise lose the answer."""


class ForwardedFor:
    """ASGI middleware, the outermost one: the address of a caller behind trusted proxies."""

    def __init__(self, app: ASGIApp, proxies: TrustedProxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if client is not None and self._proxies.trusts(client[0]):
            forwarded = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == FORWARDED_FOR]
            if forwarded:
                # Set in the server's own scope, for the access log.
                scope["client"] = (self._proxies.caller(client[0], forwarded), 0)
        await self._app(scope, receive, send)


def believe_proxies(app: Starlette, networks: Sequence[Network]) -> None:
    """Trust ``X-Forwarded-For`` of these proxies. Add this middleware last."""
    if networks:
        app.add_middleware(ForwardedFor, proxies=TrustedProxies(networks))


class Transport:
    """ASGI middleware. Answers errors that no inner layer has answered."""

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request
        answer = _Answer(send, request, _Rest(receive, headers))
        with about(request=request):
            await self._answered(scope, answer.rest, answer, request)

    async def _answered(self, scope: Scope, receive: Receive, answer: _Answer, request: str) -> None:
        began = time.perf_counter()
        try:
            if "\0" in scope["path"] and "\0" in _KEY.sub(r"\1", scope["path"]):
                await self._refuse(_no_name(called_path(scope), request), answer, scope, receive)
                return
            await self._app(scope, receive, answer)
        except BodyRefused as error:
            await self._refuse(error.problem(called_path(scope), request), answer, scope, receive, error.headers)
        except Exception:
            # Last resort: the client gets only the id under which the log has the trace.
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


class _Rest:
    """The unread rest of a request's body."""

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        declared = headers.get("content-length", "")
        self._left = int(declared) if declared.isdigit() else 0
        self.unread = bool(self._left) or "transfer-encoding" in headers
        self._is_large = self._left > _DISCARDED or "transfer-encoding" in headers
        self._waits = headers.get("expect", "").lower() == "100-continue"
        self._asked = False

    async def __call__(self) -> Message:
        self._asked = True
        message = await self._receive()
        if not message.get("more_body", False):
            self.unread = False
        return message

    @property
    def ends_connection(self) -> bool:
        """Return whether the rest is too large to discard for the next request of the connection."""
        return self.unread and self._is_large

    async def discard(self) -> None:
        """Discard the rest for a moment. A client that waits for permission to send (100-continue) sends nothing."""
        if self._waits and not self._asked:
            return
        until = time.monotonic() + _LINGER_SECONDS
        with suppress(TimeoutError):
            while self.unread and (left := until - time.monotonic()) > 0:
                async with asyncio.timeout(min(left, _LINGER_PAUSE_SECONDS)):
                    await self()


class _Answer:
    """The answer, with the request's id in its headers. ``status`` is 0 until it has begun.

    An answer that leaves a large body unread closes the connection.
    """

    def __init__(self, send: Send, request: str, rest: _Rest) -> None:
        self._send = send
        self._request = request
        self.rest = rest
        self._ends = False
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self._request
            headers["x-content-type-options"] = "nosniff"
            if self.rest.ends_connection:
                self._ends = True
                headers["connection"] = "close"
        elif self._ends and self.rest.unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self.rest.discard()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)


def _request_id(headers: Headers) -> str:
    proposed = headers.get(REQUEST_ID, "")
    return proposed if SAFE_REQUEST_ID.fullmatch(proposed) else secrets.token_hex(8)


def _no_name(path: str, request: str) -> Problem:
    """Refuse the character NUL in paths, which databases treat differently. In a key it means null."""
    return Problem(
        type=PREFIX + "no-such-path",
        title="Not Found",
        status=404,
        detail="This path does not exist; names do not contain the character NUL.",
        instance=path,
        request=request,
    )


def _unforeseen(path: str, request: str) -> Problem:
    return Problem(
        type=PREFIX + "internal",
        title="Internal error",
        status=500,
        detail=f"Unexpected error in the control plane; its log has the details under request {request}.",
        instance=path,
        request=request,
    )
