"""Raw requests with injected lines, crafted paths and ambiguous framing, and messages that imitate events."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import pytest

from epochal.contracts.catalog import Failure
from tests.service.conftest import Plane

HOST = "Host: 127.0.0.1"


def exchange(plane: Plane, *lines: str, body: str = "", seconds: float = 30.0) -> list[tuple[int, str]]:
    """Status and body of each answer until the connection ends."""
    message = "\r\n".join([*lines, "", body])
    received = b""
    with socket.create_connection((plane.settings.host, plane.settings.port), timeout=seconds) as connection:
        connection.sendall(message.encode("latin-1"))
        with suppress(TimeoutError, ConnectionResetError):
            while block := connection.recv(65536):
                received += block
    answers = received.decode("latin-1").split("HTTP/1.1 ")[1:]
    return [(int(answer[:3]), answer.partition("\r\n\r\n")[2]) for answer in answers]


def bearer(plane: Plane) -> str:
    return f"Authorization: Bearer {plane.admin_token}"


def answer_to(plane: Plane, line: str, *headers: str) -> tuple[int, str]:
    (answer,) = exchange(plane, line, HOST, *headers, "Connection: close")
    return answer


CRAFTED_PATHS = [
    "/healthz/../v1/applications",
    "/healthz/..%2fv1/applications",
    "/healthz%2f..%2fv1/applications",
    "/healthz;/v1/applications",
    "/healthz/%2e%2e/v1/applications",
    "http://127.0.0.1/v1/applications",
    "http://healthz/v1/applications",
    "/v1%2fapplications",
    "/v1/applications?/healthz",
    "/v1/applications#/healthz",
    "//v1/applications",
    "/%76%31/applications",
    "*",
]


def test_crafted_paths_do_not_bypass_the_gate(plane: Plane) -> None:
    overrides = ["X-Original-URL: /healthz", "X-Rewrite-URL: /healthz", "X-HTTP-Method-Override: OPTIONS"]
    for path in CRAFTED_PATHS:
        for headers in ([], overrides):
            status, body = answer_to(plane, f"GET {path} HTTP/1.1", *headers)
            assert status in (400, 401, 404) and "items" not in body, (path, body)


TRAVERSALS = [
    "/v1/applications/..%2f..%2fmetrics",
    "/v1/applications/../tokens",
    "/v1/applications/%2e%2e/tokens",
    "/v1/applications/..%5c..%5cadmin.token",
    "/v1/applications/flights/exports/..%2f..%2f..%2fadmin.token",
    "/v1/applications/flights/logs/..%2f..%2fadmin.token",
    "/v1/artifacts/..%2f..%2fadmin.token",
    "/v1/imports/..%2f..%2fadmin.token",
]


def test_path_traversals_are_not_found(plane: Plane) -> None:
    plane.application(start=False)
    for path in TRAVERSALS:
        status, body = answer_to(plane, f"GET {path} HTTP/1.1", bearer(plane))
        assert status == 404 and "ept_" not in body and "items" not in body, (path, body)


MALFORMED = [
    ["GET /v1/applications HTTP/1.1", "X: a\nInjected: b"],
    ["GET /v1/applications HTTP/1.1", "X: a\0b"],
    ["GET /v1/applications HTTP/1.1", " folded: x"],
    ["GET /v1/applications HTTP/1.1", "Transfer-Encoding : chunked"],
    ["GET /v1/applications HTTP/9.9"],
    ["CONNECT metadata.example:80 HTTP/1.1"],
    ["GET  /v1/applications  HTTP/1.1 x"],
]


def test_malformed_lines_are_refused(plane: Plane) -> None:
    for first, *more in MALFORMED:
        answers = exchange(plane, first, HOST, bearer(plane), *more, "Connection: close")
        assert [status for status, _ in answers] == [400], (first, more, answers)


@pytest.mark.parametrize(
    "framing",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Content-Length: 5", "Content-Length: 60"],
        ["Content-Length: +5"],
        ["Content-Length: -1"],
        ["Transfer-Encoding: chunked, identity"],
    ],
)
def test_ambiguous_framing_does_not_smuggle_a_request(plane: Plane, framing: list[str]) -> None:
    """A proxy could consider the second request part of the body of the first."""
    hidden = f"0\r\n\r\nDELETE /v1/applications/flights HTTP/1.1\r\n{HOST}\r\n{bearer(plane)}\r\n\r\n"
    plane.application(start=False)
    answers = exchange(plane, "POST /v1/tokens HTTP/1.1", HOST, bearer(plane), *framing, body=hidden, seconds=1.0)
    assert len(answers) <= 1 and all(status in (400, 408, 501) for status, _ in answers), answers
    assert plane.get("/v1/applications")["items"][0]["name"] == "flights"
    assert not [item for item in plane.get("/v1/audit")["items"] if item["action"].startswith("DELETE")]


def test_the_host_header_does_not_appear_in_answers(plane: Plane) -> None:
    for host in ("evil.example", "evil.example\r\nHost: 127.0.0.1", "127.0.0.1@evil.example", "a" * 5000):
        for line in ("GET /v1/applications HTTP/1.1", "GET /nothing HTTP/1.1", "POST /v1/applications HTTP/1.1"):
            answers = exchange(plane, line, f"Host: {host}", bearer(plane), "Content-Length: 0", "Connection: close")
            assert len(answers) == 1 and "evil" not in answers[0][1]


FORGED = 'x\r\n\r\nid: 999\r\nevent: operation\r\ndata: {"state": "succeeded"}\r\n\r\n\u2028\u0085'


def test_messages_cannot_forge_events(plane: Plane) -> None:
    """Events contain the failures of drivers and the messages of users."""
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    driver.catalog.open_epoch(2, driver.head_key)
    driver.catalog.abort_epoch(2, Failure(type=FORGED[:20], message=FORGED))
    plane.post("/v1/applications/flights/savepoints", name="s", message=FORGED)
    driver.catalog.finish(Failure(type="x", message=FORGED))
    expected = sum(event.application == "flights" for event in plane.events)
    received, text = list[str](), ""
    with plane.client.stream("GET", "/v1/applications/flights/events", headers={"Last-Event-ID": "0"}) as answer:
        for piece in answer.iter_text():
            text += piece
            if text.count("\ndata: ") == expected:
                break
    # A line ends at CR LF, LF or CR.
    received = [line for line in text.replace("\r", "\n").split("\n") if line]
    assert [line for line in received if line.startswith("id: ")] == [f"id: {number + 1}" for number in range(expected)]
    assert all(line.startswith(("id: ", "event: ", "data: ", "retry: ", ":")) for line in received)
    data = [json.loads(line.removeprefix("data: ")) for line in received if line.startswith("data: ")]
    assert any((item.get("failure") or {}).get("message") == FORGED for item in data)  # the message itself is unaltered
