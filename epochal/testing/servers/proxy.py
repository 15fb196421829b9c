"""A TCP proxy in front of a server for fault tests: it cuts connections, delays or loses answers, or is a black hole.

A fault applies either immediately to all connections (:meth:`TcpProxy.cut`, :meth:`TcpProxy.delay`,
:meth:`TcpProxy.hold`), or to one request that the test recognises by its bytes (:meth:`TcpProxy.plan`). The latter
reaches a moment that no fault point in the client can reach: after the server's action and before the client receives
the answer.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from epochal.testing.servers.process import LOOPBACK

Asked = Callable[[bytes], bool]
Kind = Literal["lose-request", "lose-answer", "delay", "hold"]
KINDS: tuple[Kind, ...] = ("lose-request", "lose-answer", "delay", "hold")
_PIECE = 64 * 1024


@dataclass
class Trouble:
    """The fault that applies to the first client request that ``asked`` recognises.

    ``lose-request``: the connection is cut and the server does not receive the request. ``lose-answer``: the server
    performs the request, and the connection is cut when it answers. ``delay``: the answer arrives ``seconds`` late.
    ``hold``: the server receives the request, but no answer is forwarded on this connection, which stays open, until
    :meth:`TcpProxy.heal`.
    """

    kind: Kind
    asked: Asked
    seconds: float = 0.0
    met: threading.Event = field(default_factory=threading.Event)
    """Set when the request is recognised."""


class TcpProxy:
    """Listens on ``port`` of ``host`` until :meth:`close`, and forwards to ``target_port`` of loopback.

    ``port`` 0 selects a free port.
    """

    def __init__(self, target_port: int, host: str = LOOPBACK, port: int = 0) -> None:
        self._target_port = target_port
        self._listener = socket.create_server((host, port))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._planned: list[Trouble] = []
        self._to_lose: _Countdown | None = None
        self._refusing = False
        self._delay = 0.0
        self._open = threading.Event()
        self._open.set()
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()

    def plan(self, kind: Kind, asked: Asked, seconds: float = 0.0) -> Trouble:
        """Plan a fault for the next request that ``asked`` recognises. It applies once; ``met`` is set when it does."""
        trouble = Trouble(kind, asked, seconds)
        with self._lock:
            self._planned.append(trouble)
        return trouble

    def lose_answer(self, number: int) -> threading.Event:
        """Cut the connection when answer ``number`` (from 1, over all connections) arrives. Returns an event that is
        then set."""
        with self._lock:
            self._to_lose = _Countdown(number)
            return self._to_lose.over

    def cut(self) -> None:
        """Close every connection, and each new connection immediately."""
        self._refusing = True
        self.reset()

    def reset(self) -> None:
        """Close every connection. New connections are accepted."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.close()

    def delay(self, seconds: float) -> None:
        """Delay every piece of an answer by ``seconds``."""
        self._delay = seconds

    def hold(self) -> None:
        """Become a black hole: accept connections and keep them open, but forward nothing in either direction."""
        self._open.clear()

    def heal(self) -> None:
        """End all faults. Held data continues, as after a TCP retransmission; open plans are dropped."""
        self._refusing, self._delay = False, 0.0
        self._open.set()
        with self._lock:
            self._planned.clear()
            self._to_lose = None
            for link in self._links:
                link.released.set()

    @contextmanager
    def trouble(self, kind: Kind, asked: Asked, seconds: float = 0.0) -> Iterator[Trouble]:
        """Call :meth:`plan`, and :meth:`heal` at the end of the block."""
        try:
            yield self.plan(kind, asked, seconds)
        finally:
            self.heal()

    def close(self) -> None:
        """Stop listening and close every connection. Repeated calls are safe."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._open.set()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = self._connect()
            except OSError:
                client.close()  # as if the server itself were down
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._lock:
                self._links.add(link)
            for pump in (self._requests, self._answers):
                threading.Thread(target=self._pump, args=(pump, link), name="proxy-link", daemon=True).start()

    def _connect(self) -> socket.socket:
        """Connect to the server, for a new connection. Raises ``OSError``."""
        return socket.create_connection((LOOPBACK, self._target_port), timeout=5)

    def _pump(self, pump: Callable[[_Link], None], link: _Link) -> None:
        with suppress(OSError):
            pump(link)
        link.close()
        with self._lock:
            self._links.discard(link)

    def _requests(self, link: _Link) -> None:
        while data := link.client.recv(_PIECE):
            self._open.wait()
            met = self._meet(data)
            if met is not None:
                link.released.clear()
                link.trouble = met
                met.met.set()
                if met.kind == "lose-request":
                    return
            link.server.sendall(data)

    def _answers(self, link: _Link) -> None:
        while data := link.server.recv(_PIECE):
            self._open.wait()
            if self._delay:
                time.sleep(self._delay)
            if self._is_lost():
                return
            met, link.trouble = link.trouble, None
            if met is not None:
                if met.kind == "lose-answer":
                    return
                if met.kind == "delay":
                    time.sleep(met.seconds)
                if met.kind == "hold":
                    link.released.wait()
            link.client.sendall(data)

    def _is_lost(self) -> bool:
        with self._lock:
            return self._to_lose is not None and self._to_lose.count()

    def _meet(self, data: bytes) -> Trouble | None:
        with self._lock:
            for trouble in self._planned:
                if trouble.asked(data):
                    self._planned.remove(trouble)
                    return trouble
        return None


@dataclass
class _Countdown:
    left: int
    over: threading.Event = field(default_factory=threading.Event)

    def count(self) -> bool:
        """Count one answer. Returns whether it is the one to lose."""
        self.left -= 1
        if self.left == 0:
            self.over.set()
        return self.left == 0


class _Link:
    """A client connection and the corresponding connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.trouble: Trouble | None = None
        self.released = threading.Event()

    def close(self) -> None:
        self.released.set()
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def proxy(target_port: int) -> Iterator[TcpProxy]:
    """Run a proxy in front of a loopback port; close it at the end of the block."""
    before = TcpProxy(target_port)
    try:
        yield before
    finally:
        before.close()


def containing(text: bytes) -> Asked:
    """Recognise requests of textual protocols: ``containing(b"op=RENAME")``."""
    return lambda data: text in data


def kafka_request(key: int) -> Asked:
    """Recognise requests of Kafka's protocol by key: 0 produce, 22 init-producer-id, 26 end-transaction."""

    def asked(data: bytes) -> bool:
        at = 0
        while at + 6 <= len(data):
            if int.from_bytes(data[at + 4 : at + 6], "big") == key:
                return True
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        return False

    return asked
