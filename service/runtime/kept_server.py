"""The web server of a supervised process: ready when it listens, alive while it answers, ended by its parent."""

from __future__ import annotations

import signal
import socket
import time
from types import FrameType

import uvicorn

from epochal.service.domain.setting_sections import Tls
from epochal.service.runtime.kept_process import BEAT_SECONDS, ParentConnection
from epochal.service.runtime.tls_server import TlsServer


class KeptServer(TlsServer):
    def __init__(self, config: uvicorn.Config, parent: ParentConnection, tls: Tls | None) -> None:
        super().__init__(config, tls)
        self._parent = parent
        self._beat_at = 0.0
        parent.when_over(self.end)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._parent.ready()

    async def on_tick(self, counter: int) -> bool:
        """Send a heartbeat from the event loop: while the loop runs, requests are answered."""
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + BEAT_SECONDS
            self._parent.beat()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig != signal.SIGINT:
            self.end()

    def end(self) -> None:
        self.should_exit = True
