"""The short way of look-ups and the ordinary route: whatever is asked, they answer the same bytes."""

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

SHORT = [
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
"""Paths, and headers beside host and token; these are answered the short way."""
ORDINARY = [
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
    ("/v1/applications/nobody/state/delays/keys/JFK,LAX", [ID]),
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
"""Headers, method, version; with each the connection ends, so that nothing may be sent after it."""


@pytest.fixture
def there(plane: Plane) -> Plane:
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


def asked(plane: Plane, *requests: bytes) -> bytes:
    """What comes back over one connection until nothing more can; the last request closes it."""
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=60) as connection:
        for request in requests:
            connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def in_turn(plane: Plane, *requests: bytes) -> bytes:
    """As :func:`asked`, but each is sent when the one before it has been answered; the last one closes."""
    answers = b""
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=60) as connection:
        for request in requests[:-1]:
            connection.sendall(request)
            answers += one_answer(connection)
        connection.sendall(requests[-1])
        return answers + b"".join(iter(lambda: connection.recv(65536), b""))


def until_it_closes(plane: Plane, *requests: bytes) -> bytes:
    """As :func:`asked`, but the last request, which closes, is only sent where the server has not closed before: what
    comes after that is answered by a reset, which may take answers with it."""
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


def last(plane: Plane) -> bytes:
    return b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-request-id: last\r\nconnection: close\r\n\r\n"


def plain(answers: bytes) -> bytes:
    """Without what differs from answer to answer: the time, and an id that nobody has proposed."""
    answers = re.sub(rb"date: [^\r]*\r\n", b"", answers)
    for made in re.findall(rb"x-request-id: ([0-9a-f]{16})\r\n", answers):
        answers = answers.replace(made, b"made")
    return answers


def both_ways(
    plane: Plane,
    requests: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[..., bytes] = asked,
) -> tuple[bytes, bytes, list[str]]:
    """The answers with the short way open, and without it; and how many were given by it."""
    given: list[str] = []

    def counted(way: str) -> Callable[..., object]:
        answer = getattr(FastLookups, way)

        def answered(lookups: FastLookups, *request: object) -> object:
            found = answer(lookups, *request)
            given.extend([way] if found is not None else [])
            return found

        return answered

    plane.get("/v1/applications")  # so that the token is known
    with monkeypatch.context() as patched:
        for way in ("answer", "again"):
            patched.setattr(FastLookups, way, counted(way))
        short = ask(plane, *requests)
        for way in ("answer", "again"):
            patched.setattr(FastLookups, way, lambda *_: None)
        return plain(short), plain(ask(plane, *requests)), given


def test_both_answer_the_same_bytes(there: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.service.runtime.authenticator.REMEMBERED_SECONDS", 600.0)
    there.control.authenticator.forget()
    for cases, expected in ((SHORT, ["answer"]), (ORDINARY, [])):
        for path, headers in cases:
            sent = [request(there, path, headers), last(there)]
            short, ordinary, given = both_ways(there, sent, monkeypatch)
            assert (short, given) == (ordinary, expected), (path, headers)
            assert (b'"since":{"worst":1}' in short) == ("partial" in path)
    for headers, method, version in CLOSING:
        sent = [request(there, KEYS + "JFK,LAX", headers, method, version)]
        short, ordinary, given = both_ways(there, sent, monkeypatch)
        assert (short, given) == (ordinary, []), (headers, method, version)
    for method in ("HEAD", "POST"):
        sent = [request(there, KEYS + "JFK,LAX", [ID], method), last(there)]
        short, ordinary, given = both_ways(there, sent, monkeypatch)
        assert (short, given) == (ordinary, []), method
    for token in ("", "Bearer", "Bearer nonsense", "Basic eA==", "bearer  " + "ept_" + "0" * 32 + "_" + "x" * 43):
        lines = [f"GET {KEYS}JFK,LAX HTTP/1.1", "host: localhost", f"authorization: {token}", ID, "", ""]
        short, ordinary, given = both_ways(there, ["\r\n".join(lines).encode(), last(there)], monkeypatch)
        assert (short, given) == (ordinary, []) and b" 401 " in short, token


AGAIN = [
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
"""Paths of requests whose heads are known, and whether nothing but the key of them is parsed."""
FIRST = [KEYS + "JFK,LAX", NUMBER_KEYS + "-2,0"]
"""After these both tables and the head are known."""


def test_requests_like_those_before_are_answered_by_their_keys(there: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.service.runtime.authenticator.REMEMBERED_SECONDS", 600.0)
    there.control.authenticator.forget()
    for headers in ([], ["accept: */*", "user-agent: mine/1.0"]):
        for path, again in AGAIN:
            sent = [*(request(there, each, headers) for each in (*FIRST, path)), last(there)]
            short, ordinary, given = both_ways(there, sent, monkeypatch, in_turn)
            assert (short, "again" in given[2:]) == (ordinary, again), path
    known = request(there, KEYS + "JFK,LAX", [])
    short, ordinary, given = both_ways(there, [known, known, last(there)], monkeypatch, in_turn)
    assert (short, given) == (ordinary, ["again", "again"])
    for sent in (
        [known[:-1], known[-1:]],
        [known[:30], known[30:] + known[:30], known[30:]],
        [known + known],
        [known.replace(b"HTTP/1.1", b"HTTP/1.0")],
        [known.replace(b"GET ", b"HEAD ")],
        [known.replace(b"GET ", b"GET  ")],
        [known.replace(b" HTTP", b"  HTTP")],
        [known.replace(b"keys/", b"keys/ ")],
        [known.replace(b"host: localhost", b"host: other")],
        [known.replace(b"\r\n", b"\n", 1)],
        [b"\r\n" + known],
        [known[:-2] + b"accept: */*\r\n\r\n"],
        [known[:-2] + b"content-length: 0\r\n\r\n"],
    ):
        short, ordinary, _ = both_ways(there, [*sent, last(there)], monkeypatch, until_it_closes)
        assert short == ordinary, sent


def test_a_head_is_not_remembered_without_the_token_in_it(there: Plane) -> None:
    """Whatever the parser takes for an end of the first line: another request without a token is nobody's."""
    token = there.client.headers["authorization"]
    there.get("/v1/applications")
    for end in (b"\n", b"\r"):
        split = f"GET {KEYS}JFK,LAX HTTP/1.1".encode() + end + f"authorization: {token}\r\nhost: a\r\n\r\n".encode()
        with suppress(ConnectionError):
            asked(there, split, last(there))
    bare = f"GET {KEYS}JFK,LAX HTTP/1.1\r\nhost: a\r\n\r\n".encode()
    assert b" 401 " in asked(there, bare, last(there))


def test_requests_of_one_connection_are_answered_in_turn(there: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they arrive: together, in pieces, behind one that takes longer."""
    lookups = [request(there, KEYS + key, [ID]) for key in ("JFK,LAX", "+,*", "JFK,SFO", "JFK,LAX")]
    listed = request(there, "/v1/applications", [ID])
    together = [b"".join([*lookups, listed, *lookups, last(there)])]
    short, ordinary, _ = both_ways(there, together, monkeypatch)
    assert short == ordinary and short.count(b"HTTP/1.1 ") == 10
    waits = request(there, KEYS + "JFK,LAX?min_epoch=2&wait_seconds=1", [ID])
    behind, ordinary, _ = both_ways(there, [waits, lookups[0], last(there)], monkeypatch)
    assert behind == ordinary and behind.startswith(b"HTTP/1.1 4") and behind.count(b"HTTP/1.1 200") == 2
    pieces = [bytes([byte]) for byte in lookups[0]] + [lookups[1] + lookups[0][:40], lookups[0][40:], last(there)]
    short, ordinary, _ = both_ways(there, pieces, monkeypatch)
    assert short == ordinary and short.count(b"HTTP/1.1 200") == 4


def test_both_are_logged_and_counted_alike(there: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(re.sub(r":\d+ ", " ", record.getMessage()))

    said: list[str] = []
    logger, handler = logging.getLogger("uvicorn.access"), Kept()
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    logger.addHandler(handler)
    try:
        for forwarded in ([], ["x-forwarded-for: 192.0.2.7"]):
            said.clear()
            both_ways(there, [request(there, KEYS + "a%2Fb,%C3%BC%2C%25", [ID, *forwarded]), last(there)], monkeypatch)
            mine = [line for line in said if "/keys/" in line]
            assert len(mine) == 2 and mine[0] == mine[1]
            assert mine[0].startswith("127.0.0.1")  # no proxy is trusted
    finally:
        logger.removeHandler(handler)
        monkeypatch.undo()
        logger.manager._clear_cache()  # type: ignore[attr-defined]
    counted = re.search(r'^epochal_lookup_seconds_count\{application="flights"\} (\d+)', metrics(there), re.MULTILINE)
    assert counted is not None and int(counted[1].partition(".")[0]) == 5
    assert 'epochal_request_seconds_count{method="GET",path="/v1/applications/{name}/state' in metrics(there)


def metrics(plane: Plane) -> str:
    return plane.client.get("/metrics").text


def test_a_deleted_token_is_refused_the_short_way_too(there: Plane) -> None:
    made = there.post("/v1/tokens", 201, name="reader", role="viewer")
    with there.as_bearer(made["token"]) as client:
        assert [client.get(KEYS + "JFK,LAX").status_code for _ in range(3)] == [200] * 3
        assert there.client.delete(f"/v1/tokens/{made['id']}").status_code == 204
        assert client.get(KEYS + "JFK,LAX").status_code == 401


def test_plain_keys_are_those_of_the_ordinary_form() -> None:
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
