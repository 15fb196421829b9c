"""The fast path of look-ups and the HTTP route return equal bytes for every request."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from epochal.service.api.fast_lookups import FastLookups
from epochal.service.runtime.replicas.point_format import PointFormat
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.state.table import StateKind
from tests.service.lookups import DELAYS, KEYS, VISITS, StateDriver, get, place, route, table

if TYPE_CHECKING:
    from tests.service.conftest import Plane

NUMBERS = table("numbers", StateKind.VALUE, "small int, big bigint", "value double, flag boolean, name string")
PARTIAL = table("partial", StateKind.AGGREGATE, "city string", "flights bigint, worst bigint")
PARTIAL = PARTIAL.model_copy(
    update={
        "value": tuple(each.model_copy(update={"since": 1 if each.name == "worst" else None}) for each in PARTIAL.value)
    }
)
NUMBER_KEYS = "/v1/applications/flights/state/numbers/keys/"
VISIT_KEYS = "/v1/applications/flights/state/visits.places/keys/"
ID = "x-request-id: mine"

FAST_PATHS = [
    (KEYS + "JFK,LAX", [ID]),
    (KEYS + "a%2Fb,%C3%BC%2C%25", [ID]),
    (KEYS + "~a:b@c.d-e_f,LAX", [ID]),
    (KEYS + "+,*", [ID]),
    (KEYS + "JFK,LAX", [ID, "accept: text/html", "origin: http://elsewhere.example", "cookie: a=b"]),
    (NUMBER_KEYS + "1,-9223372036854775808", [ID]),
    (NUMBER_KEYS + "-2,0", [ID]),
    (VISIT_KEYS + "N1,JFK", [ID]),
    ("/v1/applications/flights/state/partial/keys/JFK", [ID]),
]
"""Paths, and headers in addition to host and token. The fast path answers these."""
ROUTE_PATHS = [
    (KEYS + "JFK,SFO", [ID]),
    (KEYS + "JFK", [ID]),
    (KEYS + "JFK,LAX,1", [ID]),
    (KEYS + "%FF,LAX", [ID]),
    (KEYS + "JFK,%00", [ID]),
    (KEYS + "JFK,LAX?isolation=read_committed", [ID]),
    (KEYS + "JFK,LAX?isolation=dirty", [ID]),
    (KEYS + "JFK,LAX#", [ID]),
    (KEYS + "JFK,LAX", [ID, "if-none-match: *"]),
    (KEYS + "JFK,LAX", [ID, "content-length: 0"]),
    (KEYS + "JFK,LAX", [ID, "authorization: Bearer another"]),
    (KEYS + "JFK,LAX", [ID, "x-request-id: theirs"]),
    (KEYS + "JFK,LAX", ["x-request-id: not safe"]),
    (NUMBER_KEYS + "2147483648,1", [ID]),
    (NUMBER_KEYS + "01,1", [ID]),
    (NUMBER_KEYS + "-0,0", [ID]),
    (NUMBER_KEYS + "x,1", [ID]),
    (VISIT_KEYS + "N1", [ID]),
    ("/v1/applications/flights/state/hidden/keys/1", [ID]),
    ("/v1/applications/missing/state/delays/keys/JFK,LAX", [ID]),
    ("/v1/applications/flights%2F/state/delays/keys/JFK,LAX", [ID]),
    ("/v1/applications/flights//state/delays/keys/JFK,LAX", [ID]),
    ("/v1/applications/%00/state/delays/keys/JFK,LAX", [ID]),
    ("/v1/applications/flights/state/delays/keyz/JFK,LAX", [ID]),
    ("/v1/applications/../applications/flights/state/delays/keys/JFK,LAX", [ID]),
    ("http://127.0.0.1" + KEYS + "JFK,LAX", [ID]),
]
CLOSING = [
    ([ID, "connection: close"], "GET", "1.1"),
    ([ID, "connection: upgrade, close", "upgrade: h2c"], "GET", "1.1"),
    ([ID, "no header"], "GET", "1.1"),
    ([ID], "get", "1.1"),
    ([ID], "GET", "1.0"),
]
"""Headers, method, version. Each closes the connection, so that no request may follow it."""


@pytest.fixture
def served(plane: Plane) -> Plane:
    plane.application()
    driver = StateDriver(plane, tables=(DELAYS, VISITS, NUMBERS, PARTIAL))
    delays = [route("JFK", "LAX", 1, 2.5), route("a/b", "ü,%", 2, None), route("~a:b@c.d-e_f", "LAX", 3, 0.5)]
    numbers = [
        {"small": 1, "big": -(1 << 63), "value": float("inf"), "flag": True, "name": "§"},
        {"small": -2, "big": 0, "value": None, "flag": None, "name": None},
    ]
    delays.append(route("+", "*", 4, 1.0))
    partial = [{"city": "JFK", "flights": 3, "worst": 2}]
    driver.epoch((DELAYS, delays), (VISITS, [place("N1", "JFK", 1)]), (NUMBERS, numbers), (PARTIAL, partial))
    get(plane, "JFK,LAX", min_epoch=1)
    return plane


def received(plane: Plane, *requests: bytes) -> bytes:
    """All bytes received over one connection until it is closed; the last request closes it."""
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=60) as connection:
        for request in requests:
            connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def one_by_one(plane: Plane, *requests: bytes) -> bytes:
    """As :func:`received`, but each request is sent after the answer to the previous one. The last request closes
    the connection."""
    answers = b""
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=60) as connection:
        for request in requests[:-1]:
            connection.sendall(request)
            answers += one_answer(connection)
        connection.sendall(requests[-1])
        return answers + b"".join(iter(lambda: connection.recv(65536), b""))


def until_closed(plane: Plane, *requests: bytes) -> bytes:
    """As :func:`received`, but the last request, which closes the connection, is sent only if the server has not
    closed it. A request on a closed connection is answered by a reset, which can discard answers."""
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=60) as connection:
        for request in requests[:-1]:
            connection.sendall(request)
        answers = b""
        while b"\r\n\r\n" not in answers:
            received = connection.recv(65536)
            assert received, answers
            answers += received
        if b"connection: close" not in answers and b"HTTP/1.0" not in requests[0]:
            connection.sendall(requests[-1])
        return answers + b"".join(iter(lambda: connection.recv(65536), b""))


def one_answer(connection: socket.socket) -> bytes:
    answer = b""
    while True:
        head, end, body = answer.partition(b"\r\n\r\n")
        if end and len(body) == int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return answer
        received = connection.recv(65536)
        assert received, answer
        answer += received


def request(plane: Plane, path: str, headers: list[str], method: str = "GET", version: str = "1.1") -> bytes:
    token = plane.client.headers["authorization"]
    lines = [f"{method} {path} HTTP/{version}", "host: localhost", f"authorization: {token}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def closing_request(plane: Plane) -> bytes:
    return b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-request-id: last\r\nconnection: close\r\n\r\n"


def normalized(answers: bytes) -> bytes:
    """Answers without the parts that differ between equal answers: the time, and generated request ids."""
    answers = re.sub(rb"date: [^\r]*\r\n", b"", answers)
    for made in re.findall(rb"x-request-id: ([0-9a-f]{16})\r\n", answers):
        answers = answers.replace(made, b"made")
    return answers


def answer_both_ways(
    plane: Plane,
    requests: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    send: Callable[..., bytes] = received,
) -> tuple[bytes, bytes, list[str]]:
    """The answers with the fast path, the answers without it, and the functions of the fast path that answered."""
    answered_by: list[str] = []

    def counted(way: str) -> Callable[..., object]:
        answer = getattr(FastLookups, way)

        def answered(lookups: FastLookups, *request: object) -> object:
            found = answer(lookups, *request)
            answered_by.extend([way] if found is not None else [])
            return found

        return answered

    plane.get("/v1/applications")  # stores the token in the cache
    with monkeypatch.context() as patched:
        for way in ("answer", "again"):
            patched.setattr(FastLookups, way, counted(way))
        short = send(plane, *requests)
        for way in ("answer", "again"):
            patched.setattr(FastLookups, way, lambda *_: None)
        return normalized(short), normalized(send(plane, *requests)), answered_by


def test_fast_path_and_route_return_equal_bytes(served: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.service.runtime.authenticator.REMEMBERED_SECONDS", 600.0)
    served.control.authenticator.forget()
    for cases, expected in ((FAST_PATHS, ["answer"]), (ROUTE_PATHS, [])):
        for path, headers in cases:
            sent = [request(served, path, headers), closing_request(served)]
            short, ordinary, answered_by = answer_both_ways(served, sent, monkeypatch)
            assert (short, answered_by) == (ordinary, expected), (path, headers)
            assert (b'"since":{"worst":1}' in short) == ("partial" in path)
    for headers, method, version in CLOSING:
        sent = [request(served, KEYS + "JFK,LAX", headers, method, version)]
        short, ordinary, answered_by = answer_both_ways(served, sent, monkeypatch)
        assert (short, answered_by) == (ordinary, []), (headers, method, version)
    for method in ("HEAD", "POST"):
        sent = [request(served, KEYS + "JFK,LAX", [ID], method), closing_request(served)]
        short, ordinary, answered_by = answer_both_ways(served, sent, monkeypatch)
        assert (short, answered_by) == (ordinary, []), method
    for token in ("", "Bearer", "Bearer nonsense", "Basic eA==", "bearer  " + "ept_" + "0" * 32 + "_" + "x" * 43):
        lines = [f"GET {KEYS}JFK,LAX HTTP/1.1", "host: localhost", f"authorization: {token}", ID, "", ""]
        short, ordinary, answered_by = answer_both_ways(
            served, ["\r\n".join(lines).encode(), closing_request(served)], monkeypatch
        )
        assert (short, answered_by) == (ordinary, []) and b" 401 " in short, token


CACHED_HEADS = [
    (KEYS + "JFK,LAX", True),
    (KEYS + "~a:b@c.d-e_f,LAX", True),
    (KEYS + "a%2Fb,%C3%BC%2C%25", False),
    (KEYS + "JFK,SFO", False),
    (KEYS + "JFK", False),
    (KEYS + "JFK,LAX?isolation=read_committed", False),
    (KEYS + "JFK,LAX#", False),
    (KEYS + "../keys/JFK,LAX", False),
    (NUMBER_KEYS + "1,-9223372036854775808", True),
    (NUMBER_KEYS + "1,9223372036854775808", False),
    ("/v1/applications/flights/state/hidden/keys/1", False),
    ("/v1/applications/flights/state/delays/keyz/JFK,LAX", False),
]
"""Paths of requests whose headers are already cached, and whether only the key of the request is parsed."""
PRIMING = [KEYS + "JFK,LAX", NUMBER_KEYS + "-2,0"]
"""After these requests, both tables and the headers are cached."""


def test_requests_with_cached_headers_are_answered_by_key(served: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.service.runtime.authenticator.REMEMBERED_SECONDS", 600.0)
    served.control.authenticator.forget()
    for headers in ([], ["accept: */*", "user-agent: mine/1.0"]):
        for path, again in CACHED_HEADS:
            sent = [*(request(served, each, headers) for each in (*PRIMING, path)), closing_request(served)]
            short, ordinary, answered_by = answer_both_ways(served, sent, monkeypatch, one_by_one)
            assert (short, "again" in answered_by[2:]) == (ordinary, again), path
    cached = request(served, KEYS + "JFK,LAX", [])
    short, ordinary, answered_by = answer_both_ways(
        served, [cached, cached, closing_request(served)], monkeypatch, one_by_one
    )
    assert (short, answered_by) == (ordinary, ["again", "again"])
    for sent in (
        [cached[:-1], cached[-1:]],
        [cached[:30], cached[30:] + cached[:30], cached[30:]],
        [cached + cached],
        [cached.replace(b"HTTP/1.1", b"HTTP/1.0")],
        [cached.replace(b"GET ", b"HEAD ")],
        [cached.replace(b"GET ", b"GET  ")],
        [cached.replace(b" HTTP", b"  HTTP")],
        [cached.replace(b"keys/", b"keys/ ")],
        [cached.replace(b"host: localhost", b"host: other")],
        [cached.replace(b"\r\n", b"\n", 1)],
        [b"\r\n" + cached],
        [cached[:-2] + b"accept: */*\r\n\r\n"],
        [cached[:-2] + b"content-length: 0\r\n\r\n"],
    ):
        short, ordinary, _ = answer_both_ways(served, [*sent, closing_request(served)], monkeypatch, until_closed)
        assert short == ordinary, sent


def test_headers_are_cached_only_with_their_token(served: Plane) -> None:
    """The parser may accept other line ends. A later request without a token must still be refused."""
    token = served.client.headers["authorization"]
    served.get("/v1/applications")
    for end in (b"\n", b"\r"):
        split = f"GET {KEYS}JFK,LAX HTTP/1.1".encode() + end + f"authorization: {token}\r\nhost: a\r\n\r\n".encode()
        with suppress(ConnectionError):
            received(served, split, closing_request(served))
    bare = f"GET {KEYS}JFK,LAX HTTP/1.1\r\nhost: a\r\n\r\n".encode()
    assert b" 401 " in received(served, bare, closing_request(served))


def test_requests_of_one_connection_are_answered_in_order(served: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that arrive together, in pieces, or behind a slower request."""
    lookups = [request(served, KEYS + key, [ID]) for key in ("JFK,LAX", "+,*", "JFK,SFO", "JFK,LAX")]
    listed = request(served, "/v1/applications", [ID])
    together = [b"".join([*lookups, listed, *lookups, closing_request(served)])]
    short, ordinary, _ = answer_both_ways(served, together, monkeypatch)
    assert short == ordinary and short.count(b"HTTP/1.1 ") == 10
    waits = request(served, KEYS + "JFK,LAX?min_epoch=2&wait_seconds=1", [ID])
    behind, ordinary, _ = answer_both_ways(served, [waits, lookups[0], closing_request(served)], monkeypatch)
    assert behind == ordinary and behind.startswith(b"HTTP/1.1 4") and behind.count(b"HTTP/1.1 200") == 2
    pieces = [bytes([byte]) for byte in lookups[0]] + [
        lookups[1] + lookups[0][:40],
        lookups[0][40:],
        closing_request(served),
    ]
    short, ordinary, _ = answer_both_ways(served, pieces, monkeypatch)
    assert short == ordinary and short.count(b"HTTP/1.1 200") == 4


def test_fast_path_and_route_are_logged_and_counted_equally(served: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(re.sub(r":\d+ ", " ", record.getMessage()))

    messages: list[str] = []
    logger, handler = logging.getLogger("uvicorn.access"), Recorder()
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    logger.addHandler(handler)
    try:
        for forwarded in ([], ["x-forwarded-for: 192.0.2.7"]):
            messages.clear()
            answer_both_ways(
                served,
                [request(served, KEYS + "a%2Fb,%C3%BC%2C%25", [ID, *forwarded]), closing_request(served)],
                monkeypatch,
            )
            mine = [line for line in messages if "/keys/" in line]
            assert len(mine) == 2 and mine[0] == mine[1]
            assert mine[0].startswith("127.0.0.1")  # no proxy is trusted
    finally:
        logger.removeHandler(handler)
        monkeypatch.undo()
        logger.manager._clear_cache()  # type: ignore[attr-defined]
    counted = re.search(r'^epochal_lookup_seconds_count\{application="flights"\} (\d+)', metrics(served), re.MULTILINE)
    assert counted is not None and int(counted[1].partition(".")[0]) == 5
    assert 'epochal_request_seconds_count{method="GET",path="/v1/applications/{name}/state' in metrics(served)


def metrics(plane: Plane) -> str:
    return plane.client.get("/metrics").text


def test_fast_path_refuses_a_deleted_token(served: Plane) -> None:
    made = served.post("/v1/tokens", 201, name="reader", role="viewer")
    with served.as_bearer(made["token"]) as client:
        assert [client.get(KEYS + "JFK,LAX").status_code for _ in range(3)] == [200] * 3
        assert served.client.delete(f"/v1/tokens/{made['id']}").status_code == 204
        assert client.get(KEYS + "JFK,LAX").status_code == 401


def test_fast_path_encodes_keys_as_the_row_format_does() -> None:
    format = RowFormat(NUMBERS)
    points = PointFormat(format)
    for small in ("0", "7", "-1", "2147483647", "-2147483648"):
        for big in ("0", "9223372036854775807", "-9223372036854775808"):
            key = format.path_key(f"{small},{big}")
            assert points.key(f"{small},{big}".encode()) == (format.encode_key(key), format.key_json(key))
    for other in ("00,1", "+1,1", "-0,1", "1", "1,1,1", "1, 1", "", "2147483648,1", "1,9223372036854775808", "٣,1"):
        assert points.key(other.encode()) is None, other
    for type, name, bound in (("bigint", "n", 1 << 63), ("tinyint", "per%cent", 1 << 7)):
        format = RowFormat(table("one", StateKind.VALUE, f"{name} {type}", "v int"))
        points = PointFormat(format)
        for number in (0, -1, bound - 1, -bound):
            key = format.path_key(str(number))
            assert points.key(str(number).encode()) == (format.encode_key(key), format.key_json(key))
        for other in (str(bound), str(-bound - 1), "00", "+1", "-0", "", "1,", "1_0", " 1", "1\n", "\u0663"):
            assert points.key(other.encode()) is None, other
    text = PointFormat(RowFormat(table("texts", StateKind.VALUE, "s string", "v int")))
    assert text.key(b"12") == (b"12\x01", b'{"s":"12"}') and text.key(b"1,2") is None
    assert PointFormat(RowFormat(table("dates", StateKind.VALUE, "d date", "v int"))).key(b"2013-01-31") is None
