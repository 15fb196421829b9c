"""Idempotency-Key: a repeated mutating call with the same key gets the answer of the first call, and has no effect.

Keys belong to a token and are kept for a day. The answer is stored before it is sent. The same key with a different
request is refused (422). While the first call is in progress, repetitions are refused (409, with Retry-After); the
control plane that executes it renews its claim every few seconds. If the claim expires, the call is executed again,
unless part of it was committed to the catalog: then its answer is lost (409).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.errors import (
    CallInProgress,
    CatalogUnavailable,
    Conflict,
    EpochalError,
    InvalidInput,
    OutcomeUnknown,
)
from epochal.service.api.access import changes_something, may_be_repeated
from epochal.service.api.bodies import LARGE_BODY_BYTES
from epochal.service.api.problems import problem_answer
from epochal.service.api.project_paths import called_path
from epochal.service.catalog.database import Database
from epochal.service.catalog.idempotency import RENEW_SECONDS, IdempotencyKeys, KeyClaim, StoredAnswer, making
from epochal.service.domain.permissions import Principal
from epochal.wire.problems import problem_of

HEADER = "idempotency-key"
STORED_ANSWER = "idempotency_stored_answer"
"""Key in ``request.state``: the answer to store instead of one that contains a secret."""

KEEP_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts to store an answer."""
_METHODS = ("POST", "PUT", "PATCH", "DELETE")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class Idempotency:
    """ASGI middleware. Must run inside the gate: only callers that may make the call now get a replay."""

    def __init__(self, app: ASGIApp, database: Database, hours: float) -> None:
        self._app = app
        self._keys = IdempotencyKeys(database, timedelta(hours=hours))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _METHODS or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = headers.get(HEADER)
        if key is None or not changes_something(scope.get("endpoint")):
            await self._app(scope, receive, send)
            return
        try:
            if not _KEY.fullmatch(key):
                raise InvalidInput("The Idempotency-Key must be 1 to 200 visible ASCII characters.")
            principal: Principal = scope["state"]["principal"]  # set by the gate
            body = await _read(receive)
            request = await _digest_of(scope, body)
            claimed = await run_in_threadpool(self._keys.claim, principal.id, key, request)
        except EpochalError as error:
            problem = problem_of(error, instance=called_path(scope), request=scope["state"]["request_id"])
            wait = {"retry-after": "1"} if isinstance(error, CallInProgress) else {}
            await problem_answer(problem, wait)(scope, receive, send)
            return
        if isinstance(claimed, StoredAnswer):
            await _send(send, _messages(claimed, replayed=True))
            return
        await self._make(scope, body, receive, send, claimed)

    async def _make(self, scope: Scope, body: bytes, receive: Receive, send: Send, claim: KeyClaim) -> None:
        capture = _Capture()
        once = nullcontext() if may_be_repeated(scope.get("endpoint")) else making(claim)
        try:
            async with self._renewing(claim):
                with once:
                    await self._app(scope, _Replay(body, receive), capture)
        except BaseException:
            await self._release(claim)
            raise
        answer = capture.answer()
        if answer.status >= 500 or answer.status in (401, 403, 429):
            await self._release(claim)
        else:
            instead = scope["state"].get(STORED_ANSWER)
            kept = answer if instead is None else StoredAnswer(answer.status, _sized(answer.headers, instead), instead)
            await self._keep(claim, kept)
        await _send(send, _messages(answer, replayed=False))

    @asynccontextmanager
    async def _renewing(self, claim: KeyClaim) -> AsyncIterator[None]:
        """Renew the claim, so that repetitions of the call wait however long it takes."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                with suppress(CatalogUnavailable, OutcomeUnknown, Conflict):
                    await run_in_threadpool(self._keys.renew, claim)

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()

    async def _release(self, claim: KeyClaim) -> None:
        """If this fails, the claim expires."""
        with suppress(CatalogUnavailable, OutcomeUnknown, Conflict):
            await run_in_threadpool(self._keys.release, claim)

    async def _keep(self, claim: KeyClaim, answer: StoredAnswer) -> None:
        """Store the answer; retry while the catalog is briefly unavailable, since the change is already made."""
        for pause in (*KEEP_PAUSES, None):
            try:
                await run_in_threadpool(self._keys.keep, claim, answer)
                return
            except (CatalogUnavailable, OutcomeUnknown):
                if pause is None:
                    raise
                await asyncio.sleep(pause)


class _Replay:
    """A body that has been read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Capture:
    def __init__(self) -> None:
        self._status = 500
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")

    def answer(self) -> StoredAnswer:
        return StoredAnswer(self._status, self._headers, bytes(self._body))


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _messages(answer: StoredAnswer, replayed: bool) -> list[Message]:
    headers = [(name.encode(), value.encode()) for name, value in answer.headers]
    if replayed:
        headers.append((b"idempotency-replayed", b"true"))
    return [
        {"type": "http.response.start", "status": answer.status, "headers": headers},
        {"type": "http.response.body", "body": answer.body},
    ]


async def _send(send: Send, messages: list[Message]) -> None:
    for message in messages:
        await send(message)


async def _digest_of(scope: Scope, body: bytes) -> str:
    if len(body) <= LARGE_BODY_BYTES:
        return _digest(scope, body)
    return await run_in_threadpool(_digest, scope, body)


def _digest(scope: Scope, body: bytes) -> str:
    digest = hashlib.sha256()
    for part in (scope["method"].encode(), called_path(scope).encode(), scope.get("query_string", b""), body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _sized(headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
    return [(name, str(len(body)) if name == "content-length" else value) for name, value in headers]
