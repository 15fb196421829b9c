"""The moving part that carries out operations on the whole store, and collects from time to time by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epochal.errors import CatalogUnavailable, Conflict, EpochalError
from epochal.service.catalog.models import Operation
from epochal.service.retention.operations import StoreOperationKind, StoreOperations

log = logging.getLogger("epochal.retention")

Report = Callable[[str], None]
Work = Callable[[Report], dict[str, Any]]
"""What an operation does; its result as JSON."""

BY_ITSELF = "epochal"


@dataclass(frozen=True)
class _Order:
    id: str
    work: Work


class StoreWorker:
    """Implements :class:`epochal.service.ports.Part`. One thread, one operation at a time."""

    def __init__(self, operations: StoreOperations, collect: Work, every_seconds: float | None) -> None:
        self._operations = operations
        self._collect = collect
        self._every_seconds = every_seconds
        self._orders: list[_Order] = []
        self._changed = threading.Condition()
        self._closing = False
        self._next = time.monotonic() + (every_seconds or 0)
        self._thread = threading.Thread(target=self._run, name="store-worker", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is under way is left where it is: the next collection goes on from there."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def begin(self, kind: StoreOperationKind, request: dict[str, Any], work: Work, by: str) -> Operation:
        """Have it done. Raises ``Conflict`` while another one is under way."""
        operation = self._operations.begin(kind, request, by)
        with self._changed:
            self._orders.append(_Order(operation.id, work))
            self._changed.notify_all()
        return operation

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or bool(self._orders), self._patience())
                if self._closing:
                    return
                order = self._orders.pop(0) if self._orders else None
            if order is not None:
                self._carry_out(order)
            elif self._every_seconds is not None and time.monotonic() >= self._next:
                self._next = time.monotonic() + self._every_seconds
                self._collect_by_itself()

    def _patience(self) -> float | None:
        return None if self._every_seconds is None else max(0.0, self._next - time.monotonic())

    def _collect_by_itself(self) -> None:
        try:
            operation = self._operations.begin("collect", {}, BY_ITSELF)
        except Conflict:
            return  # somebody else is at it
        except EpochalError as error:
            log.warning("no collection: %s", error)
            return
        self._carry_out(_Order(operation.id, self._collect))

    def _carry_out(self, order: _Order) -> None:
        report = self._operations.reporter(order.id)

        def report_unless_closing(said: str) -> None:
            if self._closing:
                raise CatalogUnavailable("The control plane stops; the next collection goes on.")
            report(said)

        try:
            self._operations.succeeded(order.id, order.work(report_unless_closing))
        except EpochalError as error:
            log.warning("operation %s: %s", order.id, error)
            self._fail(order.id, error)
        except Exception as error:
            log.exception("operation %s", order.id)
            self._fail(order.id, EpochalError(f"Something unexpected went wrong ({type(error).__name__})."))

    def _fail(self, id: str, error: EpochalError) -> None:
        try:
            self._operations.failed(id, error)
        except EpochalError as unwritten:
            log.warning("operation %s: %s", id, unwritten)  # without a beat it will be taken as gone
