"""The moving part that carries out operations on the whole store, and collects from time to time by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from epochal.errors import CatalogUnavailable, Conflict, EpochalError, OutcomeUnknown
from epochal.service.catalog.collection_operations import StoreOperationKind, StoreOperations, StoreOrder, order_of
from epochal.service.catalog.models import Operation

log = logging.getLogger("epochal.retention")

Report = Callable[[str], None]
Work = Callable[[dict[str, Any], Report], dict[str, Any]]
"""What an operation of some kind does: its request to its result, both as JSON."""

BY_ITSELF = "epochal"
LOOK_SECONDS = 10.0
"""Between two looks for operations whose process is gone, and between two beats of one under way."""


class _Closing(Exception):
    """Ends the work under way."""


class StoreWorker:
    """Implements :class:`epochal.service.domain.ports.Component`. One thread, one operation at a time.

    An operation that a control plane did not end is begun again by the next one, or by another that shares the catalog.
    """

    def __init__(
        self, operations: StoreOperations, works: Mapping[StoreOperationKind, Work], every_seconds: float | None
    ) -> None:
        self._operations = operations
        self._works = works
        self._every_seconds = every_seconds
        self._orders: list[StoreOrder] = []
        self._changed = threading.Condition()
        self._closing = False
        self._next = time.monotonic() + (every_seconds or 0)
        self._thread = threading.Thread(target=self._run, name="store-worker", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is under way is begun again by the next control plane."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def begin(self, kind: StoreOperationKind, request: dict[str, Any], by: str) -> Operation:
        """Have it done. Raises ``Conflict`` while another one is under way."""
        operation = self._operations.begin(kind, request, by)
        with self._changed:
            self._orders.append(order_of(operation))
            self._changed.notify_all()
        return operation

    def _run(self) -> None:
        while not self._closing:
            order = self._next_order()
            if order is not None:
                self._carry_out(order)
                continue
            with self._changed:
                self._changed.wait_for(lambda: self._closing or bool(self._orders), self._patience())
        for order in self._orders:
            self._release(order.id)

    def _next_order(self) -> StoreOrder | None:
        """What was asked for here, what another process has left, or a collection that is due by itself."""
        with self._changed:
            if self._orders:
                return self._orders.pop(0)
        try:
            left = self._operations.take_over()
            if left is not None or self._every_seconds is None or time.monotonic() < self._next:
                return left
            self._next = time.monotonic() + self._every_seconds
            return order_of(self._operations.begin("collect", {}, BY_ITSELF))
        except Conflict:
            return None  # somebody else is at it
        except EpochalError as error:
            log.warning("no collection, and no look for what others have left: %s", error)
            return None

    def _patience(self) -> float:
        if self._every_seconds is None:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(0.0, self._next - time.monotonic()))

    def _carry_out(self, order: StoreOrder) -> None:
        report = self._operations.reporter(order.id)

        def report_unless_closing(said: str) -> None:
            if self._closing:
                raise _Closing
            report(said)

        try:
            with self._beating(order.id):
                result = self._works[order.kind](order.request, report_unless_closing)
            self._operations.succeeded(order.id, result)
        except _Closing:
            self._release(order.id)
        except (CatalogUnavailable, OutcomeUnknown) as error:
            log.warning("operation %s: %s", order.id, error)  # without a beat it will be taken as gone, and begun again
        except EpochalError as error:
            log.warning("operation %s: %s", order.id, error)
            self._fail(order.id, error)
        except Exception as error:
            log.exception("operation %s", order.id)
            self._fail(order.id, EpochalError(f"Something unexpected went wrong ({type(error).__name__})."))

    @contextmanager
    def _beating(self, id: str) -> Iterator[None]:
        """Says that the operation is being carried out, also while the work has nothing to report for long."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(LOOK_SECONDS):
                self._noted(id, lambda: self._operations.beat(id))

        beating = threading.Thread(target=beat, name="store-worker-beat", daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()

    def _release(self, id: str) -> None:
        self._noted(id, lambda: self._operations.release(id))

    def _fail(self, id: str, error: EpochalError) -> None:
        self._noted(id, lambda: self._operations.failed(id, error))

    @staticmethod
    def _noted(id: str, note: Callable[[], None]) -> None:
        try:
            note()
        except EpochalError as unwritten:
            log.warning("operation %s: %s", id, unwritten)  # without a beat it will be taken as gone
