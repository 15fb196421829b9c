"""Reports of what the attempt has measured, from a thread of their own: nothing waits for them."""

from __future__ import annotations

import logging
import threading

from epochal.contracts.catalog import Catalog
from epochal.engine.meter import Meter
from epochal.errors import EpochalError

log = logging.getLogger("epochal.driver")

INTERVAL_SECONDS = 5.0


class Reports:
    """One every few seconds, and a last one at the end. One that does not arrive is not missed: the next says more.

    A control plane of an earlier version does not take them, and the attempt runs all the same.
    """

    def __init__(self, catalog: Catalog, meter: Meter, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._catalog = catalog
        self._meter = meter
        self._interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send the last one. Returns within seconds, whether it arrives or not."""
        self._stopping.set()
        self._send()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            self._send()

    def _send(self) -> None:
        with self._sending:
            try:
                self._catalog.report(self._meter.report())
            except EpochalError as error:
                log.debug("a report was not taken: %s", error)
            except Exception:
                log.exception("a report could not be made")
