"""Requests that are written by hand: lines that are to be taken for others, paths that lead elsewhere, framing that
says two things; and what a driver says, that is to pass for an event."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import pytest

from epochal.contracts.catalog import Failure
from tests.service.conftest import Plane

HOST = "Host: 127.0.0.1"


def sent(plane: Plane, *lines: str, body: str = "", seconds: float = 30.0) -> list[tuple[int, str]]:
    """What comes back before the connection ends: status and body of each answer."""
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
    return f"Authorization: Bearer {plane.settings.admin_token_file.read_text().strip()}"


def asked(plane: Plane, line: str, *headers: str) -> tuple[int, str]:
    (answer,) = sent(plane, line, HOST, *headers, "Connection: close")
    return answer


ROUND_THE_GATE = [
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


def test_no_way_of_writing_a_path_leads_round_the_gate(plane: Plane) -> None:
    elsewhere = ["X-Original-URL: /healthz", "X-Rewrite-URL: /healthz", "X-HTTP-Method-Override: OPTIONS"]
    for path in ROUND_THE_GATE:
        for headers in ([], elsewhere):
            status, body = asked(plane, f"GET {path} HTTP/1.1", *headers)
            assert status in (400, 401, 404) and "items" not in body, (path, body)


ELSEWHERE = [
    "/v1/applications/..%2f..%2fmetrics",
    "/v1/applications/../tokens",
    "/v1/applications/%2e%2e/tokens",
    "/v1/applications/..%5c..%5cadmin.token",
    "/v1/applications/flights/exports/..%2f..%2f..%2fadmin.token",
    "/v1/applications/flights/logs/..%2f..%2fadmin.token",
    "/v1/artifacts/..%2f..%2fadmin.token",
    "/v1/imports/..%2f..%2fadmin.token",
]


def test_no_path_leads_to_another_one_or_to_a_file(plane: Plane) -> None:
    plane.application(start=False)
    for path in ELSEWHERE:
        status, body = asked(plane, f"GET {path} HTTP/1.1", bearer(plane))
        assert status == 404 and "ept_" not in body and "items" not in body, (path, body)


NO_LINES = [
    ["GET /v1/applications HTTP/1.1", "X: a\nInjected: b"],
    ["GET /v1/applications HTTP/1.1", "X: a\0b"],
    ["GET /v1/applications HTTP/1.1", " folded: x"],
    ["GET /v1/applications HTTP/1.1", "Transfer-Encoding : chunked"],
    ["GET /v1/applications HTTP/9.9"],
    ["CONNECT metadata.example:80 HTTP/1.1"],
    ["GET  /v1/applications  HTTP/1.1 x"],
]


def test_lines_that_are_no_lines_are_refused(plane: Plane) -> None:
    for first, *more in NO_LINES:
        answers = sent(plane, first, HOST, bearer(plane), *more, "Connection: close")
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
def test_a_request_whose_end_can_be_read_in_two_ways_hides_no_other_one(plane: Plane, framing: list[str]) -> None:
    """What a proxy takes for the body of one would be a request of its own to the control plane."""
    hidden = f"0\r\n\r\nDELETE /v1/applications/flights HTTP/1.1\r\n{HOST}\r\n{bearer(plane)}\r\n\r\n"
    plane.application(start=False)
    answers = sent(plane, "POST /v1/tokens HTTP/1.1", HOST, bearer(plane), *framing, body=hidden, seconds=1.0)
    assert len(answers) <= 1 and all(status in (400, 408, 501) for status, _ in answers), answers
    assert plane.get("/v1/applications")["items"][0]["name"] == "flights"
    assert not [item for item in plane.get("/v1/audit")["items"] if item["action"].startswith("DELETE")]


def test_the_name_of_the_host_is_not_believed(plane: Plane) -> None:
    for host in ("evil.example", "evil.example\r\nHost: 127.0.0.1", "127.0.0.1@evil.example", "a" * 5000):
        for line in ("GET /v1/applications HTTP/1.1", "GET /nothing HTTP/1.1", "POST /v1/applications HTTP/1.1"):
            answers = sent(plane, line, f"Host: {host}", bearer(plane), "Content-Length: 0", "Connection: close")
            assert len(answers) == 1 and "evil" not in answers[0][1]


FORGED = 'x\r\n\r\nid: 999\r\nevent: operation\r\ndata: {"state": "succeeded"}\r\n\r\n\u2028\u0085'


def test_nothing_that_is_said_passes_for_an_event(plane: Plane) -> None:
    """A driver says why an epoch was aborted, and people say why they make a savepoint; both are told to listeners."""
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    driver.catalog.open_epoch(2, driver.head_key)
    driver.catalog.abort_epoch(2, Failure(type=FORGED[:20], message=FORGED))
    plane.post("/v1/applications/flights/savepoints", name="s", message=FORGED)
    driver.catalog.finish(Failure(type="x", message=FORGED))
    told = sum(event.application == "flights" for event in plane.events)
    received, text = list[str](), ""
    with plane.client.stream("GET", "/v1/applications/flights/events", headers={"Last-Event-ID": "0"}) as answer:
        for piece in answer.iter_text():
            text += piece
            if text.count("\ndata: ") == told:
                break
    # Listeners end a line at CR LF, at LF and at CR.
    received = [line for line in text.replace("\r", "\n").split("\n") if line]
    assert [line for line in received if line.startswith("id: ")] == [f"id: {number + 1}" for number in range(told)]
    assert all(line.startswith(("id: ", "event: ", "data: ", "retry: ", ":")) for line in received)
    data = [json.loads(line.removeprefix("data: ")) for line in received if line.startswith("data: ")]
    assert any((item.get("failure") or {}).get("message") == FORGED for item in data)  # it is said, as what it is
