"""Requests whose body is incomplete are refused in the transport layer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from epochal.service.api.bodies import Bodies
from epochal.service.api.transport import Transport

DISCONNECT: Message = {"type": "http.disconnect"}


def part(body: bytes, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An app that begins its answer, as a stream does, and then reads until the client disconnects."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.body", "body": b""})


async def parsing(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the whole body and then answers."""
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
        ({}, [DISCONNECT]),
        ({}, [part(b"", False), DISCONNECT]),
        ({"content-length": "0"}, [DISCONNECT]),
        ({"content-length": "2"}, [part(b"{", True), part(b"}", False), DISCONNECT]),
        ({"transfer-encoding": "chunked"}, [part(b"{", True), part(b"}", False), DISCONNECT]),
    ],
)
def test_a_client_that_disconnects_after_its_body_causes_no_error(
    headers: dict[str, str], messages: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        sent = answered(reading, headers, *messages)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert caplog.records == []


@pytest.mark.parametrize("headers", [{"content-length": "2"}, {"transfer-encoding": "chunked"}])
def test_a_client_that_disconnects_while_sending_its_body_is_refused(headers: dict[str, str]) -> None:
    sent = answered(parsing, headers, part(b"{", True), DISCONNECT)
    assert sent[0]["status"] == 400 and b"body-incomplete" in sent[1]["body"]
