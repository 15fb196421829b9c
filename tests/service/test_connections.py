"""Idle connections, incomplete heads and bodies, and unread answers do not delay other callers."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.runtime.logs.files import log_path
from epochal.wire.problems import Problem
from tests.kit.waiting import eventually
from tests.service.conftest import Plane
from tests.service.problems import check_problem

IDLE = 1_000
MOST = 50
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
def settings(settings: Settings, limits: Limits) -> Settings:
    return settings.model_copy(update={"limits": limits})


@contextmanager
def connected(settings: Settings, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection((settings.host, settings.port), timeout=30) as connection:
        connection.sendall(sent)
        yield connection


def answer_of(connection: socket.socket) -> tuple[int, str, Problem]:
    """Read until the server ends the connection; returns status, head and problem."""
    received = b""
    with suppress(ConnectionResetError):
        while block := connection.recv(65536):
            received += block
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), Problem.model_validate_json(body)


def get(token: str, path: str = "/v1/applications") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


class TestManyConnections:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(connections=MOST)

    def test_idle_connections_do_not_delay_readers_and_drivers(self, plane: Plane) -> None:
        plane.application()
        driver = plane.driver()
        with ExitStack() as held:
            for number in range(IDLE):
                begun = (b"", b"GET /v1/applic", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: 1")[number % 3]
                held.enter_context(connected(plane.settings, begun))
            driver.epochs(1)
            with plane.as_bearer(plane.admin_token) as other:
                assert other.get("/v1/applications").status_code == 200

    def test_a_connection_beyond_the_limit_is_refused_with_retry_after(self, plane: Plane) -> None:
        """Connections of event followers are in use and are not closed for it."""
        token = plane.admin_token
        with ExitStack() as held:
            for _ in range(MOST):
                follower = held.enter_context(connected(plane.settings, get(token, "/v1/events")))
                assert follower.recv(12) == b"HTTP/1.1 200"
            with connected(plane.settings) as refused:
                status, head, problem = answer_of(refused)
            assert (status, problem.type) == (503, "urn:epochal:problem:too-many-connections")
            assert "retry-after: 1\r\n" in head


class TestFollowers:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(followers=3)

    def test_followers_beyond_the_limit_are_refused_with_retry_after(self, plane: Plane) -> None:
        plane.application()
        driver = plane.driver()
        log = log_path(plane.settings.logs_directory, "flights", driver.execution, driver.attempt)
        log.parent.mkdir(parents=True)
        log.write_text("a line\n")
        followed = ("/v1/events", "/v1/applications/flights/events", "/v1/applications/flights/logs?follow=true")
        token = plane.admin_token
        with ExitStack() as held:
            for path in followed:
                follower = held.enter_context(connected(plane.settings, get(token, path)))
                assert follower.recv(12) == b"HTTP/1.1 200"
            for path in followed:
                refused = plane.client.get(path)
                check_problem(refused, 429, "too-many-requests")
                assert refused.headers["retry-after"] == "5"
            assert plane.client.get("/v1/applications/flights/logs").text == "a line\n"
            driver.epoch()

        def is_accepted() -> bool:
            with plane.client.stream("GET", "/v1/events") as answer:
                return answer.status_code == 200

        eventually(is_accepted)


class TestSlowRequests:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(head_seconds=0.2, body_pause_seconds=0.3, body_bytes_per_second=1_000)

    @pytest.mark.parametrize(
        ("after", "sent"),
        [(b"", b""), *((after, sent) for after in (b"", WHOLE) for sent in (b"\r\n\r\n", b"GET /v1/appl", WHOLE[:-2]))],
    )
    def test_an_incomplete_head_times_out(self, plane: Plane, after: bytes, sent: bytes) -> None:
        with connected(plane.settings, after) as connection:
            if after:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            connection.sendall(sent)
            status, head, problem = answer_of(connection)
        assert (status, problem.type) == (408, "urn:epochal:problem:request-too-slow")
        assert "connection: close" in head

    def test_a_head_sent_byte_by_byte_times_out(self, plane: Plane) -> None:
        with connected(plane.settings, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ") as connection:
            connection.settimeout(0.05)
            received = b""
            while not received:
                with suppress(TimeoutError):
                    connection.sendall(b"x")
                    received = connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 408 ")

    @pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
    @pytest.mark.parametrize("byte_by_byte", [False, True])
    def test_an_incomplete_body_times_out(self, plane: Plane, framing: str, byte_by_byte: bool) -> None:
        token = plane.token("author")
        head = f"POST /v1/artifacts?filename=a.py HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{framing}"
        with connected(plane.settings, f"{head}\r\n\r\n".encode()) as connection:
            if byte_by_byte:
                connection.settimeout(0.05)
                received = b""
                while not received:
                    with suppress(TimeoutError):
                        connection.sendall(b"1\r\nx\r\n")
                        received = connection.recv(65536)
                status = int(received.split()[1])
            else:
                status, answered, problem = answer_of(connection)
                assert problem.type == "urn:epochal:problem:request-too-slow" and "connection: close" in answered
        assert status == 408
        assert plane.get("/v1/audit")["items"][0]["outcome"] == 408

    def test_a_connection_with_an_unread_answer_is_closed(self, plane: Plane) -> None:
        token = plane.admin_token
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((plane.settings.host, plane.settings.port))
            connection.settimeout(0.5)
            with suppress(OSError):  # fill the buffers of both sides
                while True:
                    connection.sendall(get(token, "/openapi.json") * 100)
            ended = select.poll()
            ended.register(connection, select.POLLHUP | select.POLLERR)
            eventually(lambda: bool(ended.poll(0)))


class TestLargeHeads:
    @pytest.mark.parametrize(
        "endless", [b"GET /" + b"a" * 100_000, b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Long: 1\r\n" * 10_000]
    )
    def test_an_endless_head_is_refused(self, plane: Plane, endless: bytes) -> None:
        with connected(plane.settings, endless) as connection:
            status, _, problem = answer_of(connection)
        assert (status, problem.type) == (431, "urn:epochal:problem:head-too-large")

    def test_a_long_unknown_path_is_not_found(self, plane: Plane) -> None:
        answer = plane.client.get("/v1/applications/" + "a" * 50_000)
        assert answer.status_code == 404 and len(answer.content) < 110_000  # the path occurs twice
