"""A background worker: work that is handed over and done beside the caller, one piece at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from epochal.background.service import BackgroundService, log_failure

Work = Callable[[], None]
_NICENESS = 10


class BackgroundWorker:
    """Does the work it is given in a thread of lower priority. Work that fails is logged."""

    def __init__(self, name: str) -> None:
        self._work: Work | None = None
        self._changed = threading.Condition()
        self._started = self._under_way = False
        self._service = BackgroundService(name, self._step, None, delay=None, niceness=_NICENESS)

    @property
    def stopping(self) -> bool:
        """Long work checks it and ends early."""
        return self._service.stopping

    def begin(self, work: Work) -> bool:
        """Hand work over and return. ``False`` while earlier work is under way, and after :meth:`stop`."""
        with self._changed:
            if self._work is not None or self._service.stopping:
                return False
            self._work = work
            if not self._started:
                self._started = True
                self._service.start()
            self._service.wake()
            return True

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until no work is under way. ``False`` if that takes longer than the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._work is None, timeout_seconds)

    def stop(self, timeout_seconds: float = 60.0) -> bool:
        """Take no further work, and wait for the work under way. ``False`` if it has not ended in time."""
        with self._changed:
            self._service.stop(0)
            if not self._under_way:
                self._work = None
        return self.wait(timeout_seconds)

    def _step(self) -> None:
        with self._changed:
            work = self._work
            self._under_way = work is not None
        if work is None:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 logged; the worker is ready for other work
            log_failure(self._service.name, error)
        finally:
            with self._changed:
                self._work, self._under_way = None, False
                self._changed.notify_all()
