"""The process that answers drivers, as the control plane beside it has it running."""

from __future__ import annotations

import socket

from pydantic import BaseModel, ConfigDict

from epochal.service.domain.settings import Settings
from epochal.service.runtime.kept_process import KeptProcess, stop_all

HUNG_SECONDS = 10.0
"""Drivers wait for it."""
ANSWERS_SECONDS = 3.0


class InternalOrders(BaseModel):
    """``descriptor``: the socket that listens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Settings
    descriptor: int


class InternalServer:
    """A component. The socket stays this process's: while the other is replaced, drivers' connections wait in it.

    ``begin`` starts the process early, so that it loads its code beside this one.
    """

    def __init__(self, settings: Settings, listener: socket.socket, hung_seconds: float = HUNG_SECONDS) -> None:
        descriptor = listener.fileno()
        orders = InternalOrders(settings=settings, descriptor=descriptor).model_dump_json().encode()
        module = "epochal.service.internal_app"
        self._process = KeptProcess("internal process", module, orders, [descriptor], hung_seconds=hung_seconds)

    @property
    def process(self) -> int | None:
        """Its id, while there is one."""
        return self._process.process

    def answers(self) -> bool:
        """Whether drivers can be heard, as far as is known: where not, their silence proves nothing."""
        return self._process.silent_seconds < ANSWERS_SECONDS

    def begin(self) -> None:
        self._process.start()

    def open(self) -> None:
        """Raises the ``EpochalError`` for which it cannot answer."""
        self._process.wait_until_ready()

    def close(self) -> None:
        """Also of one that was only begun."""
        stop_all([self._process])
