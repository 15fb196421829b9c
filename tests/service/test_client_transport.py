"""The client with connection errors and unexpected answers, from a scripted server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from itertools import islice
from typing import Any

import pytest
from pydantic import ValidationError

from epochal.client import Client, events
from epochal.client.exchanges import ATTEMPTS
from epochal.errors import CallOutcomeUnknown, CatalogUnavailable, EpochalError, NameTaken, NotFound
from epochal.wire.operations import OperationAnswer
from tests.service.scripted_answers import Script, answer, hang_up, problem, scripted

TOKEN = {
    "id": "t1",
    "name": "ci",
    "token": "secret",
    "created_at": "2024-05-01T12:00:00Z",
    "expires_at": None,
}
OPERATION = {
    "id": "o1",
    "kind": "start",
    "application": "flights",
    "state": "running",
    "created_at": "2024-05-01T12:00:00Z",
    **dict.fromkeys(("progress", "result", "error", "cancel_requested_at", "finished_at")),
}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as script:
        yield script


@pytest.fixture
def client(script: Script) -> Iterator[Client]:
    with Client(script.url, "secret") as client:
        yield client


def test_a_retry_waits_while_the_first_try_is_in_progress(script: Script, client: Client) -> None:
    in_progress = problem(409, "call-in-progress", "Wait.", Retry_After="0")
    script.then(hang_up, *[in_progress] * (ATTEMPTS + 1), answer(201, TOKEN))
    assert client.tokens.create("ci").token == "secret"
    assert len({request.headers["Idempotency-Key"] for request in script.requests}) == 1
    script.then(in_progress, problem(409, "call-outcome-unknown", "Look."))
    with pytest.raises(CallOutcomeUnknown, match="Look"):
        client.tokens.create("ci")


def test_retries_of_a_call_have_the_same_idempotency_key(script: Script, client: Client) -> None:
    script.then(hang_up, problem(503, "catalog-unavailable", "Busy."), answer(201, TOKEN))
    assert client.tokens.create("ci").token == "secret"
    keys = [request.headers["Idempotency-Key"] for request in script.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len({request.body for request in script.requests}) == 1


def test_each_call_has_its_own_idempotency_key(script: Script, client: Client) -> None:
    script.then(answer(201, TOKEN), answer(201, TOKEN))
    client.tokens.create("one")
    client.tokens.create("two")
    assert script.requests[0].headers["Idempotency-Key"] != script.requests[1].headers["Idempotency-Key"]


def test_a_reading_call_has_no_idempotency_key(script: Script, client: Client) -> None:
    script.then(hang_up, answer(404, {"type": "urn:epochal:problem:not-found", "status": 404, "detail": "No table."}))
    with pytest.raises(NotFound):
        client.application("flights").state("t").lookup([{"k": 1}])
    assert [(request.method, "Idempotency-Key" in request.headers) for request in script.requests] == [
        ("POST", False),
        ("POST", False),
    ]


def test_the_token_is_sent(script: Script, client: Client) -> None:
    script.then(answer(200, {"items": [], "next_cursor": None}))
    client.tokens.list()
    assert script.requests[0].headers["Authorization"] == "Bearer secret"


def test_the_error_of_the_last_retry_is_raised(script: Script, client: Client) -> None:
    script.then(*[problem(503, "catalog-unavailable", "The catalog cannot be reached.")] * ATTEMPTS)
    with pytest.raises(CatalogUnavailable, match="cannot be reached"):
        client.tokens.list()
    assert len(script.requests) == ATTEMPTS


def test_a_refused_call_is_not_retried(script: Script, client: Client) -> None:
    script.then(problem(409, "name-taken", "There is an application flights; choose another name."))
    with pytest.raises(NameTaken, match="choose another name"):
        client.applications.create("flights", "0" * 64)
    assert len(script.requests) == 1


def test_without_a_control_plane_the_error_names_the_start_command() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(CatalogUnavailable, match="`epochal up`"):
            client.applications.list()
        assert not client.ready()


def test_pages_are_followed_up_to_the_limit(script: Script, client: Client) -> None:
    def page(names: str, cursor: str | None) -> dict[str, Any]:
        return {"items": [{**TOKEN, "name": name} for name in names], "next_cursor": cursor}

    script.then(answer(200, page("ab", "next one")), answer(200, page("cd", "more")))
    assert [token.name for token in client.tokens.list(limit=4)] == ["a", "b", "c", "d"]
    assert [request.path for request in script.requests] == ["/v1/tokens?limit=4", "/v1/tokens?limit=2&cursor=next+one"]


def test_fields_of_a_newer_control_plane_are_ignored(script: Script, client: Client) -> None:
    script.then(answer(200, {"items": [{**TOKEN, "colour": "blue"}], "next_cursor": None}))
    assert client.tokens.list()[0].id == "t1"


def test_kinds_of_a_newer_control_plane_are_read_as_other(script: Script, client: Client) -> None:
    script.then(answer(200, {**OPERATION, "kind": "teleport", "state": "paused"}))
    found = client.operations.get("o1")
    assert (found.kind, found.state) == ("other", "other")
    with pytest.raises(ValidationError):  # a control plane returns known kinds only
        OperationAnswer.model_validate({**OPERATION, "kind": "teleport"})


@pytest.mark.parametrize("body", ["<html>", '{"items": [{"id": 1}], "next_cursor": null}'])
def test_a_malformed_answer_raises_an_epochal_error(script: Script, client: Client, body: str) -> None:
    script.then(answer(200, body))
    with pytest.raises(EpochalError, match=r"control plane"):
        client.tokens.list()


def test_events_resume_after_the_last_received_one(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "RECONNECT_SECONDS", 0.0)

    def stream(*numbers: int) -> Callable[[BaseHTTPRequestHandler], None]:
        def step(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.end_headers()
            for number in numbers:
                handler.wfile.write(f'id: {number}\nevent: epoch\ndata: {{"epoch": {number}}}\n\n'.encode())
            handler.wfile.flush()
            hang_up(handler)

        return step

    script.then(stream(1, 2), hang_up, stream(3))
    seen = [event.data["epoch"] for event in islice(client.application("flights").events(), 3)]
    assert seen == [1, 2, 3]
    assert [request.headers.get("Last-Event-ID") for request in script.requests] == [None, "2", "2"]


def test_events_of_an_unknown_application_raise_not_found(script: Script, client: Client) -> None:
    script.then(problem(404, "not-found", "There is no application flights."))
    with pytest.raises(NotFound):
        next(client.application("flights").events())


def test_waiting_for_a_failed_operation_raises_its_error(script: Script, client: Client) -> None:
    reason = {"type": "urn:epochal:problem:execution-failed", "title": "x", "status": 500, "detail": "No space left."}
    script.then(
        answer(202, {**OPERATION, "progress": "starting the driver"}),
        answer(200, {**OPERATION, "state": "failed", "error": reason, "finished_at": "2024-05-01T12:00:01Z"}),
    )
    progress = []
    with pytest.raises(EpochalError, match="No space left"):
        client.operations.wait(client.applications.start("flights"), lambda now: progress.append(now.progress))
    assert progress == ["starting the driver", None]
