"""The process that serves drivers, supervised by the control plane beside it."""

from __future__ import annotations

import socket

from pydantic import BaseModel, ConfigDict

from epochal.service.domain.settings import Settings
from epochal.service.runtime.kept_process import KeptProcess, stop_all

HUNG_SECONDS = 10.0
"""Heartbeat timeout, shorter than the default, since drivers wait for this process."""
ANSWERS_SECONDS = 3.0


class InternalOrders(BaseModel):
    """``descriptor``: the listening socket."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Settings
    descriptor: int


class InternalServer:
    """A component. This process holds the socket: while the other process is replaced, drivers' connections wait in it.

    ``begin`` starts the process early, so that it loads its code in parallel with this one.
    """

    def __init__(self, settings: Settings, listener: socket.socket, hung_seconds: float = HUNG_SECONDS) -> None:
        descriptor = listener.fileno()
        orders = InternalOrders(settings=settings, descriptor=descriptor).model_dump_json().encode()
        module = "epochal.service.internal_app"
        self._process = KeptProcess("internal process", module, orders, [descriptor], hung_seconds=hung_seconds)

    @property
    def process(self) -> int | None:
        """The process id; ``None`` before the first start."""
        return self._process.process

    def answers(self) -> bool:
        """``True`` if drivers can reach this process, as far as is known; otherwise missing heartbeats do not prove a
        loss."""
        return self._process.silent_seconds < ANSWERS_SECONDS

    def begin(self) -> None:
        self._process.start()

    def open(self) -> None:
        """Raises the ``EpochalError`` that prevents the process from serving."""
        self._process.wait_until_ready()

    def close(self) -> None:
        """Stop the process, also if it was only begun."""
        stop_all([self._process])
