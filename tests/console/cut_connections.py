"""Connections between a browser and a control plane, which a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading

LOOPBACK = "127.0.0.1"


class CutConnections:
    """Forwards a port of its own to ``target``, until ``cut`` ends all connections and refuses new ones."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._begin()

    def cut(self) -> None:
        """End all connections, as a control plane that ends or a network that fails does."""
        for each in (self._listener, *list(self._open)):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def restore(self) -> None:
        """Accept connections again on the same port."""
        self._listener = socket.create_server((LOOPBACK, self.port))
        self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((LOOPBACK, self._target))
                self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
            self._open.discard(each)
