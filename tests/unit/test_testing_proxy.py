"""The test kit's TCP proxy, before a server that answers each line with the same line."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from epochal.testing.servers.process import LOOPBACK
from epochal.testing.servers.proxy import TcpProxy, containing, kafka_request, proxy


class Echo(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        super().__init__((LOOPBACK, 0), _Answering)


class _Answering(socketserver.StreamRequestHandler):
    server: Echo

    def handle(self) -> None:
        for line in self.rfile:
            self.server.heard.append(line)
            self.wfile.write(line)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def before(echo: Echo) -> Iterator[TcpProxy]:
    with proxy(int(echo.server_address[1])) as running:
        yield running


def connect(before: TcpProxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, before.port), timeout=10)


def ask(client: socket.socket, line: bytes) -> bytes:
    """The answer; empty when the connection was ended instead."""
    try:
        client.sendall(line)
        return client.recv(100)
    except ConnectionError:
        return b""


def silent(client: socket.socket) -> bool:
    """Nothing comes, and nothing ends."""
    client.settimeout(0.2)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


def test_it_passes_on_what_nobody_troubles(before: TcpProxy, echo: Echo) -> None:
    with connect(before) as client:
        assert ask(client, b"one\n") == b"one\n"
        assert ask(client, b"two\n") == b"two\n"
    assert echo.heard == [b"one\n", b"two\n"]


def test_a_lost_answer_is_of_something_that_was_done(before: TcpProxy, echo: Echo) -> None:
    trouble = before.plan("lose-answer", containing(b"commit"))
    with connect(before) as client:
        assert ask(client, b"begin\n") == b"begin\n"
        assert not trouble.met.is_set()
        assert ask(client, b"commit\n") == b""
    assert trouble.met.is_set()
    assert echo.heard == [b"begin\n", b"commit\n"]
    with connect(before) as client:
        assert ask(client, b"commit\n") == b"commit\n"


def test_a_lost_request_is_never_heard(before: TcpProxy, echo: Echo) -> None:
    before.plan("lose-request", containing(b"commit"))
    with connect(before) as client:
        assert ask(client, b"commit\n") == b""
    assert echo.heard == []


def test_the_second_answer_is_lost_wherever_it_comes(before: TcpProxy, echo: Echo) -> None:
    lost = before.lose_answer(2)
    with connect(before) as first, connect(before) as second:
        assert ask(first, b"one\n") == b"one\n"
        assert not lost.is_set()
        assert ask(second, b"two\n") == b""
        assert lost.is_set()
        assert ask(first, b"three\n") == b"three\n"
    assert echo.heard == [b"one\n", b"two\n", b"three\n"]


def test_one_connection_is_held_and_goes_on(before: TcpProxy, echo: Echo) -> None:
    with connect(before) as held, connect(before) as other:
        with before.trouble("hold", containing(b"commit")) as trouble:
            held.sendall(b"commit\n")
            assert trouble.met.wait(10)
            assert silent(held)
            assert ask(other, b"hello\n") == b"hello\n"
        assert held.recv(100) == b"commit\n"


def test_a_black_hole_takes_connections_and_gives_nothing_back(before: TcpProxy, echo: Echo) -> None:
    before.hold()
    with connect(before) as client:
        client.sendall(b"one\n")
        assert silent(client)
        assert echo.heard == []
        before.heal()
        assert client.recv(100) == b"one\n"


def test_cut_ends_every_connection_and_every_new_one(before: TcpProxy) -> None:
    with connect(before) as client:
        assert ask(client, b"one\n") == b"one\n"
        before.cut()
        assert ask(client, b"two\n") == b""
    with connect(before) as client:
        assert ask(client, b"three\n") == b""
    before.heal()
    with connect(before) as client:
        assert ask(client, b"four\n") == b"four\n"


def test_a_server_that_is_not_there_is_not_there(echo: Echo) -> None:
    port = int(echo.server_address[1])
    with proxy(port) as before:
        echo.shutdown()
        echo.server_close()
        with connect(before) as client:
            assert ask(client, b"one\n") == b""


def test_requests_of_kafka_are_told_by_their_key() -> None:
    produce, end = (bytes([0, 0, 0, 6, 0, key, 0, 9, 1, 2]) for key in (0, 26))
    assert kafka_request(26)(end)
    assert kafka_request(26)(produce + end)
    assert not kafka_request(26)(produce + produce)
