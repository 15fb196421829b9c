"""The short way of the common look-up: one key of the latest committed epoch, with a token that is known.

It stands in front of the whole app, and answers only when all is well; everything else (an unknown token, table or key,
a query string, an error of any kind) goes on to the ordinary route, which says what is wrong.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from contextlib import nullcontext

from starlette.types import ASGIApp, Receive, Scope, Send

from epochal.errors import EpochalError
from epochal.logs import about
from epochal.service.api.lookup_bodies import point_body, point_headers
from epochal.service.api.transport import REQUEST_ID, SAFE_REQUEST_ID, Observe
from epochal.service.queries.state.lookups import PointAnswer, etag
from epochal.service.queries.state.window_lookups import window_format
from epochal.service.runtime.authenticator import Authenticator
from epochal.service.runtime.replicas.follower import FollowedTable
from epochal.service.runtime.replicas.serving import ServedReplicas

ROUTE = "/v1/applications/{name}/state/{table}/keys/{key:path}"
_REQUEST_ID = REQUEST_ID.encode()
_access = logging.getLogger("uvicorn.access")
_BEGINNING = b"/v1/applications/"
_SEGMENTS = 8  # "", v1, applications, {name}, state, {table}, keys, {key}


class FastLookups:
    """ASGI middleware, the outermost one. ``observe`` is told of what was answered here."""

    def __init__(self, app: ASGIApp, replicas: ServedReplicas, authenticator: Authenticator, observe: Observe) -> None:
        self._app = app
        self._replicas = replicas
        self._authenticator = authenticator
        self._observe = observe
        # Without tokens the gate also looks at the request's host: that is the ordinary route's.
        self._enabled = authenticator.enabled
        self._requests = secrets.token_hex(4).encode()
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            not self._enabled
            or scope["type"] != "http"
            or scope["method"] != "GET"
            or scope["query_string"]
            or not scope["raw_path"].startswith(_BEGINNING)
        ):
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        answer = await self._answer(scope)
        if answer is None:
            await self._app(scope, receive, send)
            return
        headers, body = answer
        headers.append((b"content-length", b"%d" % len(body)))
        with about(request=headers[-2][1].decode()) if _access.isEnabledFor(logging.INFO) else nullcontext():
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        application = scope["path"].split("/", 4)[3]
        self._observe("GET", ROUTE, 200, time.perf_counter() - began, application)

    async def _answer(self, scope: Scope) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
        segments = scope["raw_path"].split(b"/", _SEGMENTS - 1)
        if len(segments) != _SEGMENTS or segments[4] != b"state" or segments[6] != b"keys":
            return None
        followed = self._replicas.table(segments[3].decode("latin-1"), segments[5].decode("latin-1"))
        if followed is None:
            return None
        authorization = request = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value.decode("latin-1")
            elif name == _REQUEST_ID:
                request = value if SAFE_REQUEST_ID.fullmatch(value.decode("latin-1")) else None
            elif name == b"if-none-match":
                return None
        try:
            await self._authenticator.user(authorization)
            found = _look_up(followed, segments[7])
        except EpochalError:
            return None
        if found is None:
            return None
        headers = point_headers(found)
        headers.append((_REQUEST_ID, request or b"%s%08x" % (self._requests, next(self._numbers))))
        return headers, point_body(followed.table.id, found, "read_committed")


def _look_up(followed: FollowedTable, path_key: bytes) -> PointAnswer | None:
    format = followed.format
    key = format.path_key(path_key.decode("latin-1"))
    if not format.is_whole(key) or window_format(format.table) is not None:
        return None
    at, value = followed.replica.get(format.encode_key(key))
    if at is None or value is None:
        return None
    return PointAnswer(format.key_json(key), at, format.value_json(value), False, etag(value))
