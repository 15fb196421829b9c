"""The web server of a process that is kept: ready when it listens, ended by its keeper."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn

from epochal.service.runtime.kept_process import Keeper


class KeptServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, keeper: Keeper) -> None:
        super().__init__(config)
        self._keeper = keeper
        keeper.when_over(self.end)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._keeper.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig != signal.SIGINT:
            self.end()

    def end(self) -> None:
        self.should_exit = True
