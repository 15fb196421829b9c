"""Shortcut for the calls that every driver makes continuously: opening, preparing and committing epochs, heartbeats,
directives.

It runs inside the gate, which has checked the token, and before the app that answers drivers. It accepts a call by its
path if the body can be parsed. All other requests go to the ordinary route, which reports errors. Both return the same
answers of the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.contracts.catalog import DriverStatus
from epochal.errors import EpochalError
from epochal.service.api.bodies import LARGE_BODY_BYTES
from epochal.service.api.problems import epochal_problem
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.runtime.drivers import DriverService
from epochal.wire.internal_api import (
    CALLS_HEADER,
    LISTEN_SECONDS,
    PROTOCOL_HEADER,
    VERSION_HEADER,
    Directives,
    NewestDirective,
    OpenEpoch,
    PrepareEpoch,
    understood,
)

_BEGINNING: Final = "/internal/v1/executions/"
_LONGEST_NUMBER: Final = 18
"""Maximum number of digits of an epoch's number here."""
_LONGEST_VERSION: Final = 64
_JSON: Final = b"application/json"
_PROTOCOL, _VERSION = PROTOCOL_HEADER.lower().encode(), VERSION_HEADER.lower().encode()
_CALLS: Final = CALLS_HEADER.lower().encode()
_QUESTION: Final = re.compile(rb"after=(?P<after>[0-9a-f]{0,32})&seconds=(?P<seconds>[0-9]{1,3}(\.[0-9]{1,9})?)")

Body = TypeVar("Body", bound=BaseModel)
Prepared = Callable[[DriverService, SqlCatalog], Awaitable[BaseModel | None]]
"""A call with parsed parameters. Its answer; ``None`` for an empty answer."""


class FastCalls:
    """ASGI middleware. Must run inside the gate and the middleware that bounds bodies and assigns request ids."""

    def __init__(self, app: ASGIApp, drivers: DriverService) -> None:
        self._app = app
        self._drivers = drivers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_BEGINNING):
            await self._app(scope, receive, send)
            return
        content = await _content(receive)
        try:
            found = await self._found(scope, content)
            if found is None:
                await self._app(scope, _again(content, receive), send)
                return
            prepared, catalog = found
            answer = await prepared(self._drivers, catalog)
        except EpochalError as error:
            await (await epochal_problem(Request(scope), error))(scope, receive, send)
            return
        await _send(answer, send)

    async def _found(self, scope: Scope, content: bytes) -> tuple[Prepared, SqlCatalog] | None:
        """Return ``None`` to leave the request to the ordinary route."""
        parts = scope["path"][len(_BEGINNING) :].split("/")
        if len(parts) < 4 or parts[1] != "attempts":
            return None
        execution, _, attempt, *call = parts
        if not _is_number(attempt) or int(attempt) == 0:
            return None
        call = [scope["method"], *call]
        parsing = (call, dict(scope["headers"]), content, execution, int(attempt), scope["query_string"])
        if len(content) > LARGE_BODY_BYTES:
            prepared = await self._drivers.run(_prepared, *parsing)
        else:
            prepared = _prepared(*parsing)
        return None if prepared is None else (prepared, self._drivers.catalog(execution, int(attempt)))


def _prepared(
    call: list[str], headers: Mapping[bytes, bytes], content: bytes, execution: str, attempt: int, query: bytes
) -> Prepared | None:
    try:
        match call:
            case ["GET", "directives"] if (asked := _QUESTION.fullmatch(query)) is not None:
                return _listen(execution, attempt, asked["after"].decode(), float(asked["seconds"]))
            case ["POST", *_] if query:
                return None
            case ["POST", "epochs"]:
                return _open(_body(OpenEpoch, headers, content))
            case ["POST", "epochs", epoch, "prepare"] if _is_number(epoch):
                return _prepare(int(epoch), _body(PrepareEpoch, headers, content), headers.get(_CALLS))
            case ["POST", "epochs", epoch, "commit"] if _is_number(epoch):
                return _commit(int(epoch))
            case ["POST", "heartbeat"] if _is_understood(headers):
                return _heartbeat(_body(DriverStatus, headers, content))
    except ValidationError:
        pass
    return None


def _is_understood(headers: Mapping[bytes, bytes]) -> bool:
    protocol = headers.get(_PROTOCOL, b"").decode("latin-1")
    return _is_number(protocol) and understood(int(protocol)) and len(headers.get(_VERSION, b"")) <= _LONGEST_VERSION


def _listen(execution: str, attempt: int, after: str, seconds: float) -> Prepared | None:
    async def call(drivers: DriverService, _catalog: SqlCatalog) -> NewestDirective:
        return NewestDirective(newest=await drivers.directive(execution, attempt, after, seconds))

    return call if seconds <= LISTEN_SECONDS else None


def _open(body: OpenEpoch) -> Prepared:
    async def call(drivers: DriverService, catalog: SqlCatalog) -> None:
        await drivers.run(catalog.open_epoch, body.epoch, body.parent)

    return call


def _prepare(epoch: int, body: PrepareEpoch, calls: bytes | None) -> Prepared | None:
    terms = body.terms
    if calls is not None:
        through = calls.decode("latin-1")
        if not _is_number(through):
            return None
        terms = terms.model_copy(update={"calls_through": int(through)})

    async def call(drivers: DriverService, catalog: SqlCatalog) -> None:
        await drivers.run(catalog.prepare_epoch, epoch, body.parent, body.manifest, body.counts, terms)

    return call


def _commit(epoch: int) -> Prepared:
    async def call(drivers: DriverService, catalog: SqlCatalog) -> None:
        await drivers.run(catalog.commit_epoch, epoch)

    return call


def _heartbeat(status: DriverStatus) -> Prepared:
    async def call(drivers: DriverService, catalog: SqlCatalog) -> Directives:
        directives = await drivers.run(catalog.heartbeat, status)
        return Directives(directives=directives, control_planes=await drivers.control_planes())

    return call


def _body(model: type[Body], headers: Mapping[bytes, bytes], content: bytes) -> Body:
    """Raise ``ValidationError``, also if the content type is not JSON."""
    return model.model_validate_json(content if headers.get(b"content-type") == _JSON else b"")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER


async def _content(receive: Receive) -> bytes:
    message = await receive()
    content: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        content += message.get("body", b"")
    return content


def _again(content: bytes, receive: Receive) -> Receive:
    """Replay the body, then continue with the rest of the stream."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


async def _send(answer: BaseModel | None, send: Send) -> None:
    if answer is None:
        await send({"type": "http.response.start", "status": 204, "headers": [(b"content-type", _JSON)]})
        await send({"type": "http.response.body", "body": b""})
        return
    content = answer.model_dump_json().encode()
    headers: list[Any] = [(b"content-length", b"%d" % len(content)), (b"content-type", _JSON)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})
