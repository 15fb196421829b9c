"""What is decided and not committed in the sinks of one application, and an administrator's say in it."""

from __future__ import annotations

from typing import Literal

from epochal.client.models import OpenTransaction, OpenTransactions, Operation
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.wire.bodies import read


class Transactions:
    """``client.application(name).transactions``"""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def list(self) -> list[OpenTransaction]:
        """By epoch and sink."""
        answer = self._transport.get(path("applications", self._application, "transactions"))
        return list(read(OpenTransactions, answer).items)

    def retry(self, sink: str, epoch: int, message: str | None = None) -> Operation:
        """Try to commit now, whatever the back-off."""
        return self._decide(sink, epoch, "retry", message)

    def commit(self, sink: str, epoch: int, message: str | None = None) -> Operation:
        """It was applied by hand: this sink goes on without writing it."""
        return self._decide(sink, epoch, "commit", message)

    def abort(self, sink: str, epoch: int, message: str | None = None) -> Operation:
        """Drop its rows, in this sink alone."""
        return self._decide(sink, epoch, "abort", message)

    def _decide(
        self, sink: str, epoch: int, action: Literal["retry", "commit", "abort"], message: str | None
    ) -> Operation:
        target = path("applications", self._application, "transactions", sink, epoch, action)
        return read(Operation, self._transport.post(target, {"message": message}))
