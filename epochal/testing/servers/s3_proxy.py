"""An HTTP proxy before an S3 server for tests: it counts requests, and delays, refuses, cuts, loses or holds them.

The ``Host`` header is passed on, so that signatures stay valid for the proxy's address::

    with s3() as server, s3_proxy(server) as proxy:
        mark = proxy.mark()
        ...  # clients use proxy.environment()
        assert proxy.counts(since=mark) == {"PUT": 1}

A fault applies to requests of the given ``kinds`` whose key, prefix or deleted keys contain the text ``containing``,
a number of ``times`` or until :meth:`S3Proxy.heal`. The first fault that applies to a request is used, the delay in
addition. All methods may be called from any thread.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from epochal.testing.servers.process import LOOPBACK
from epochal.testing.servers.s3 import S3Server, bound_socket
from epochal.testing.servers.s3_requests import Answer, Call, ClientConnection, Forward, Kind, Part, Request, error

WRITES: tuple[Kind, ...] = ("PUT", "POST", "DELETE")
Moment = Literal["before", "after", "middle"]
_PART: dict[Moment, Part] = {"before": "nothing", "after": "nothing", "middle": "half"}


@dataclass(eq=False)
class Fault:
    """A fault. ``count`` is the number of requests that it applied to, and ``met`` is set at the first."""

    name: Literal["refuse", "lose-answer", "cut", "hold", "delay"]
    kinds: Collection[Kind] | None
    containing: str
    times: int | None = None
    answer: Answer | None = None
    moment: Moment = "before"
    seconds: float = 0.0
    count: int = 0
    met: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def is_before_server(self) -> bool:
        """Whether the server does not receive the request."""
        return self.name == "refuse" or (self.name == "cut" and self.moment == "before")

    def instead_of(self, answer: Answer | None) -> Answer | None:
        """Return what the client receives instead of the server's answer."""
        if self.name == "refuse":
            return self.answer
        if answer is None:  # the server is down
            return None
        if self.name == "cut":
            return replace(answer, part=_PART[self.moment])
        return self.answer or answer

    def meets(self, call: Call) -> bool:
        """Count a request, if this fault applies to it."""
        exhausted = self.times is not None and self.count >= self.times
        if exhausted or (self.kinds is not None and call.kind not in self.kinds) or not call.names(self.containing):
            return False
        self.count += 1
        self.met.set()
        return True


class S3Proxy:
    """Listens on a port of loopback until :meth:`close`, and forwards to ``server``."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._listener: socket.socket | None = socket.create_server((LOOPBACK, 0))
        self._reserved: socket.socket | None = None
        self.port = int(self._listener.getsockname()[1])
        self.endpoint = f"http://{LOOPBACK}:{self.port}"
        self._changed = threading.Condition()
        self._clients: set[socket.socket] = set()
        self._faults: list[Fault] = []
        self._delay: Fault | None = None
        self._requests: list[Request] = []
        self._held = 0
        self._closed = False
        self._listen(self._listener)

    def environment(self) -> dict[str, str]:
        """Return the variables with which clients reach the server through the proxy, with all rights."""
        return self._server.environment(self.endpoint)

    # Requests

    def mark(self) -> int:
        """Return the number of requests so far, for ``since``."""
        with self._changed:
            return len(self._requests)

    def requests(self, since: int = 0) -> list[Request]:
        """Return the requests after :meth:`mark`, in the order of their answers.

        A request is listed before its client receives the answer, and a held one when it has landed.
        """
        with self._changed:
            return self._requests[since:]

    def counts(self, since: int = 0) -> Counter[str]:
        """Return the number of requests of each kind after :meth:`mark`."""
        return Counter(request.kind for request in self.requests(since))

    # Faults

    def delay(self, seconds: float, kinds: Collection[Kind] | None = None, containing: str = "") -> Fault:
        """Pass requests on ``seconds`` late. It replaces the previous delay."""
        with self._changed:
            self._delay = Fault("delay", kinds, containing, seconds=seconds)
            return self._delay

    def refuse(
        self,
        status: int = 503,
        times: int | None = None,
        kinds: Collection[Kind] | None = None,
        containing: str = "",
        code: str = "SlowDown",
    ) -> Fault:
        """Answer with an error of S3 without passing the request on."""
        return self._add(Fault("refuse", kinds, containing, times, error(status, code)))

    def answer_500_after_write(
        self, times: int | None = 1, kinds: Collection[Kind] | None = WRITES, containing: str = ""
    ) -> Fault:
        """Let the server perform the request, then answer 500 in its place."""
        return self._add(Fault("lose-answer", kinds, containing, times, error(500, "InternalError")))

    def cut(
        self,
        times: int | None = 1,
        kinds: Collection[Kind] | None = None,
        containing: str = "",
        moment: Moment = "before",
    ) -> Fault:
        """Close the client's connection: ``before`` the server receives the request, ``after`` it has performed it, or
        in the ``middle`` of its answer."""
        return self._add(Fault("cut", kinds, containing, times, moment=moment))

    def hold(self, times: int | None = None, kinds: Collection[Kind] | None = None, containing: str = "") -> Fault:
        """Keep requests until :meth:`release`. They reach the server then, even if their client has ended."""
        return self._add(Fault("hold", kinds, containing, times))

    def held(self) -> int:
        """Return the number of requests that are held now, or were released and not yet answered by the server."""
        with self._changed:
            return self._held

    def wait_for_held(self, number: int = 1, seconds: float = 60) -> None:
        """Wait until so many requests are held. Raises ``AssertionError`` after the timeout."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._held >= number, seconds), f"{self._held} requests are held"

    def release(self, seconds: float = 60) -> list[Request]:
        """End :meth:`hold`, pass the held requests on, and return them when the server has answered all of them.

        Raises ``AssertionError`` after the timeout.
        """
        with self._changed:
            begin = len(self._requests)
            holds = [fault for fault in self._faults if fault.name == "hold"]
            self._faults = [fault for fault in self._faults if fault not in holds]
            for fault in holds:
                fault.released.set()
            assert self._changed.wait_for(lambda: self._held == 0, seconds), f"{self._held} requests have not landed"
            return [request for request in self._requests[begin:] if request.fault == "hold"]

    def down(self) -> None:
        """Refuse new connections and close all others, as if the server's machine were away. Held requests stay."""
        with self._changed:
            self._stop_listening()
            self._reserved = bound_socket(self.port)
            clients, self._clients = self._clients, set()
        for client in clients:
            _end(client)

    def up(self) -> None:
        """Listen again on the same port."""
        with self._changed:
            if self._reserved is not None:
                listener, self._reserved = self._reserved, None
                listener.listen(128)
                self._listener = listener
                self._listen(listener)

    def heal(self) -> None:
        """End all faults. Held requests are passed on."""
        with self._changed:
            faults = self._end_faults()
        for fault in faults:
            fault.released.set()
        self.up()

    def close(self) -> None:
        """Stop listening and close all connections. Held requests are dropped. Repeated calls are safe."""
        with self._changed:
            self._closed = True
            self._stop_listening()
            faults = self._end_faults()
            clients, self._clients = self._clients, set()
        for fault in faults:
            fault.released.set()
        for client in clients:
            _end(client)

    def _add(self, fault: Fault) -> Fault:
        with self._changed:
            self._faults.append(fault)
        return fault

    def _end_faults(self) -> list[Fault]:
        faults = [*self._faults, *([self._delay] if self._delay is not None else [])]
        self._faults, self._delay = [], None
        return faults

    # Connections

    def _listen(self, listener: socket.socket) -> None:
        threading.Thread(target=self._accept, args=(listener,), name=f"s3-proxy-{self.port}", daemon=True).start()

    def _stop_listening(self) -> None:
        for listener in (self._listener, self._reserved):
            if listener is not None:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                listener.close()
        self._listener = self._reserved = None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, address = listener.accept()
            except OSError:
                return
            with self._changed:
                if self._listener is not listener:
                    client.close()
                    return
                self._clients.add(client)
            threading.Thread(target=self._serve, args=(client, address), name="s3-proxy-client", daemon=True).start()

    def _serve(self, client: socket.socket, address: tuple[str, int]) -> None:
        with suppress(OSError):
            ClientConnection(client, address, self._server.port, self._perform)
        with self._changed:
            self._clients.discard(client)
        _end(client)
        client.close()

    # One request

    def _perform(self, call: Call, forward: Forward) -> Answer | None:
        with self._changed:
            delay = self._delay if self._delay is not None and self._delay.meets(call) else None
            fault = next((fault for fault in self._faults if fault.meets(call)), None)
            is_held = fault is not None and fault.name == "hold"
            self._held += is_held
            self._changed.notify_all()
        try:
            if delay is not None:
                delay.released.wait(delay.seconds)
            if fault is not None and is_held:
                fault.released.wait()
                if self._closed:
                    return None
            return self._answer(call, forward, fault)
        finally:
            with self._changed:
                self._held -= is_held
                self._changed.notify_all()

    def _answer(self, call: Call, forward: Forward, fault: Fault | None) -> Answer | None:
        by_server = None if fault is not None and fault.is_before_server else forward(call)
        answer = by_server if fault is None else fault.instead_of(by_server)
        request = call.finished(
            answer, None if by_server is None else by_server.status, None if fault is None else fault.name
        )
        with self._changed:
            self._requests.append(request)
        return answer


@contextmanager
def s3_proxy(server: S3Server) -> Iterator[S3Proxy]:
    """Run a proxy before the server; close it at the end of the block."""
    proxy = S3Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()


def _end(client: socket.socket) -> None:
    """End a connection. The thread that serves it closes the socket."""
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
