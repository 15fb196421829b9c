"""The process that answers drivers, as the control plane beside it has it running."""

from __future__ import annotations

import socket

from pydantic import BaseModel, ConfigDict

from epochal.service.domain.settings import Settings
from epochal.service.runtime.kept_process import KeptProcess, stop_all


class InternalOrders(BaseModel):
    """``descriptor``: the socket that listens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Settings
    descriptor: int


class InternalServer:
    """A component. The socket stays this process's: while the other is replaced, drivers' connections wait in it.

    ``begin`` starts the process early, so that it loads its code beside this one.
    """

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        descriptor = listener.fileno()
        orders = InternalOrders(settings=settings, descriptor=descriptor).model_dump_json().encode()
        self._process = KeptProcess("internal process", "epochal.service.internal_app", orders, [descriptor])

    @property
    def process(self) -> int | None:
        """Its id, while there is one."""
        return self._process.process

    def begin(self) -> None:
        self._process.start()

    def open(self) -> None:
        """Raises the ``EpochalError`` for which it cannot answer."""
        self._process.wait_until_ready()

    def close(self) -> None:
        """Also of one that was only begun."""
        stop_all([self._process])
