"""A TCP proxy that a test puts before a server: it cuts connections, delays or loses answers, or is a black hole.

Trouble comes either at once and to everybody (:meth:`TcpProxy.cut`, :meth:`TcpProxy.delay`, :meth:`TcpProxy.hold`), or
to one request that the test recognises by its bytes (:meth:`TcpProxy.plan`): the exact moment that a fault point in the
client cannot reach, between what the server has done and what the client hears of it.
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
    """What becomes of the first request that ``asked`` recognises in what a client sends.

    ``lose-request``: the connection is cut, the server hears nothing. ``lose-answer``: the server does what it was
    asked, and as it answers, the connection is cut. ``delay``: the answer comes ``seconds`` late. ``hold``: the server
    hears it, and nothing comes back on this connection, which stays open, until :meth:`TcpProxy.heal`.
    """

    kind: Kind
    asked: Asked
    seconds: float = 0.0
    met: threading.Event = field(default_factory=threading.Event)
    """Set as the request is recognised."""


class TcpProxy:
    """Listens on ``port`` of ``host``, from its making to :meth:`close`, and passes all on to ``target_port`` of
    loopback. Without a port it takes one that is free."""

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
        """Trouble for the next request that ``asked`` recognises, once; its ``met`` says whether it came."""
        trouble = Trouble(kind, asked, seconds)
        with self._lock:
            self._planned.append(trouble)
        return trouble

    def lose_answer(self, number: int) -> threading.Event:
        """Cut the connection on which the answer of this number (from 1, over all connections) comes; set then."""
        with self._lock:
            self._to_lose = _Countdown(number)
            return self._to_lose.over

    def cut(self) -> None:
        """End every connection, and every new one at once."""
        self._refusing = True
        self.reset()

    def reset(self) -> None:
        """End every connection; new ones are welcome."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.close()

    def delay(self, seconds: float) -> None:
        """Every piece of an answer comes so much later."""
        self._delay = seconds

    def hold(self) -> None:
        """A black hole: connections are taken and stay open, nothing goes through in either direction."""
        self._open.clear()

    def heal(self) -> None:
        """All is well again: what was held goes on, as after packets that TCP sends again; open plans are dropped."""
        self._refusing, self._delay = False, 0.0
        self._open.set()
        with self._lock:
            self._planned.clear()
            self._to_lose = None
            for link in self._links:
                link.released.set()

    @contextmanager
    def trouble(self, kind: Kind, asked: Asked, seconds: float = 0.0) -> Iterator[Trouble]:
        """:meth:`plan`, and :meth:`heal` at the end of the block."""
        try:
            yield self.plan(kind, asked, seconds)
        finally:
            self.heal()

    def close(self) -> None:
        """Stop listening and end every connection. Safe to call again."""
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
                client.close()  # as the server itself would: it is not there
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
        """To the server, for a new connection. Raises ``OSError``."""
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
        """Whether this one was the one."""
        self.left -= 1
        if self.left == 0:
            self.over.set()
        return self.left == 0


class _Link:
    """One client's connection, and the one to the server that was made for it."""

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
    """A proxy before a port of loopback, closed at the end of the block."""
    before = TcpProxy(target_port)
    try:
        yield before
    finally:
        before.close()


def containing(text: bytes) -> Asked:
    """Recognises requests of textual protocols: ``containing(b"op=RENAME")``."""
    return lambda data: text in data


def kafka_request(key: int) -> Asked:
    """Recognises requests of Kafka's protocol by their key: 0 produce, 22 init-producer-id, 26 end-transaction."""

    def asked(data: bytes) -> bool:
        at = 0
        while at + 6 <= len(data):
            if int.from_bytes(data[at + 4 : at + 6], "big") == key:
                return True
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        return False

    return asked
