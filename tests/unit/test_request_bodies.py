"""Whether all of a request's body has come, judged where every request passes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from epochal.service.api.bodies import Bodies
from epochal.service.api.transport import Transport

GONE: Message = {"type": "http.disconnect"}


def part(body: bytes, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An app that begins its answer, as a stream does, and then reads until its client has gone."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.body", "body": b""})


async def parsing(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads all of a body before it answers."""
    while (await receive())["more_body"]:
        pass


def answered(app: ASGIApp, headers: dict[str, str], *messages: Message) -> list[Message]:
    coming, sent = iter(messages), []

    async def receive() -> Message:
        return next(coming)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/artifacts",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Transport(Bodies(app, lambda _: 100), observe=lambda *_: None)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("headers", "messages"),
    [
        ({}, [GONE]),
        ({}, [part(b"", False), GONE]),
        ({"content-length": "0"}, [GONE]),
        ({"content-length": "2"}, [part(b"{", True), part(b"}", False), GONE]),
        ({"transfer-encoding": "chunked"}, [part(b"{", True), part(b"}", False), GONE]),
    ],
)
def test_a_client_that_stops_listening_is_no_error(
    headers: dict[str, str], messages: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        sent = answered(reading, headers, *messages)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert caplog.records == []


@pytest.mark.parametrize("headers", [{"content-length": "2"}, {"transfer-encoding": "chunked"}])
def test_a_client_that_goes_away_within_its_body_is_refused(headers: dict[str, str]) -> None:
    sent = answered(parsing, headers, part(b"{", True), GONE)
    assert sent[0]["status"] == 400 and b"body-incomplete" in sent[1]["body"]
