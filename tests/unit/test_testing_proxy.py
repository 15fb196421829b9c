"""The test kit's TCP proxy in front of a server that echoes lines."""

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
        self.received: list[bytes] = []
        super().__init__((LOOPBACK, 0), _Answering)


class _Answering(socketserver.StreamRequestHandler):
    server: Echo

    def handle(self) -> None:
        for line in self.rfile:
            self.server.received.append(line)
            self.wfile.write(line)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def tcp_proxy(echo: Echo) -> Iterator[TcpProxy]:
    with proxy(int(echo.server_address[1])) as running:
        yield running


def connect(tcp_proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, tcp_proxy.port), timeout=10)


def send(client: socket.socket, line: bytes) -> bytes:
    """Send a line and return the answer, or nothing if the connection ends."""
    try:
        client.sendall(line)
        return client.recv(100)
    except ConnectionError:
        return b""


def silent(client: socket.socket) -> bool:
    """Return whether the connection is open and no data arrives."""
    client.settimeout(0.2)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


def test_lines_are_forwarded_without_planned_faults(tcp_proxy: TcpProxy, echo: Echo) -> None:
    with connect(tcp_proxy) as client:
        assert send(client, b"one\n") == b"one\n"
        assert send(client, b"two\n") == b"two\n"
    assert echo.received == [b"one\n", b"two\n"]


def test_a_lost_answer_belongs_to_a_delivered_request(tcp_proxy: TcpProxy, echo: Echo) -> None:
    trouble = tcp_proxy.plan("lose-answer", containing(b"commit"))
    with connect(tcp_proxy) as client:
        assert send(client, b"begin\n") == b"begin\n"
        assert not trouble.met.is_set()
        assert send(client, b"commit\n") == b""
    assert trouble.met.is_set()
    assert echo.received == [b"begin\n", b"commit\n"]
    with connect(tcp_proxy) as client:
        assert send(client, b"commit\n") == b"commit\n"


def test_a_lost_request_is_not_delivered(tcp_proxy: TcpProxy, echo: Echo) -> None:
    tcp_proxy.plan("lose-request", containing(b"commit"))
    with connect(tcp_proxy) as client:
        assert send(client, b"commit\n") == b""
    assert echo.received == []


def test_the_second_answer_is_lost_on_any_connection(tcp_proxy: TcpProxy, echo: Echo) -> None:
    lost = tcp_proxy.lose_answer(2)
    with connect(tcp_proxy) as first, connect(tcp_proxy) as second:
        assert send(first, b"one\n") == b"one\n"
        assert not lost.is_set()
        assert send(second, b"two\n") == b""
        assert lost.is_set()
        assert send(first, b"three\n") == b"three\n"
    assert echo.received == [b"one\n", b"two\n", b"three\n"]


def test_a_held_connection_continues_after_its_release(tcp_proxy: TcpProxy, echo: Echo) -> None:
    with connect(tcp_proxy) as held, connect(tcp_proxy) as other:
        with tcp_proxy.trouble("hold", containing(b"commit")) as trouble:
            held.sendall(b"commit\n")
            assert trouble.met.wait(10)
            assert silent(held)
            assert send(other, b"hello\n") == b"hello\n"
        assert held.recv(100) == b"commit\n"


def test_a_black_hole_accepts_connections_and_returns_nothing(tcp_proxy: TcpProxy, echo: Echo) -> None:
    tcp_proxy.hold()
    with connect(tcp_proxy) as client:
        client.sendall(b"one\n")
        assert silent(client)
        assert echo.received == []
        tcp_proxy.heal()
        assert client.recv(100) == b"one\n"


def test_cut_ends_existing_and_new_connections(tcp_proxy: TcpProxy) -> None:
    with connect(tcp_proxy) as client:
        assert send(client, b"one\n") == b"one\n"
        tcp_proxy.cut()
        assert send(client, b"two\n") == b""
    with connect(tcp_proxy) as client:
        assert send(client, b"three\n") == b""
    tcp_proxy.heal()
    with connect(tcp_proxy) as client:
        assert send(client, b"four\n") == b"four\n"


def test_connections_end_if_the_server_has_stopped(echo: Echo) -> None:
    port = int(echo.server_address[1])
    with proxy(port) as tcp_proxy:
        echo.shutdown()
        echo.server_close()
        with connect(tcp_proxy) as client:
            assert send(client, b"one\n") == b""


def test_kafka_requests_are_recognised_by_their_key() -> None:
    produce, end = (bytes([0, 0, 0, 6, 0, key, 0, 9, 1, 2]) for key in (0, 26))
    assert kafka_request(26)(end)
    assert kafka_request(26)(produce + end)
    assert not kafka_request(26)(produce + produce)
