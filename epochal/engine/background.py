"""Work beside the epochs: one piece at a time, in a thread that gives way to everything else."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from epochal.errors import EpochalError

log = logging.getLogger(__name__)

Work = Callable[[], None]
_NICENESS = 10


class Background:
    """A thread that waits for work. What fails in it is logged, and harms nobody."""

    def __init__(self, name: str) -> None:
        self._work: Work | None = None
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Long work looks here, and ends early."""
        return self._stopping

    def begin(self, work: Work) -> bool:
        """Hand work over and return at once; ``False`` while earlier work is not done, or after ``stop``."""
        with self._changed:
            if self._work is not None or self._stopping:
                return False
            self._work = work
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify_all()
            return True

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until nothing is being done. False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._work is None, timeout_seconds)

    def stop(self, timeout_seconds: float = 60.0) -> bool:
        """Begin nothing further, and wait for the work under way. False when it is still not done."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        return self.wait(timeout_seconds)

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # a thread may be nicer than its process on Linux alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work is not None or self._stopping)
                work = self._work
            if work is None:
                return
            try:
                work()
            except EpochalError as error:
                log.warning("%s: %s", self._thread.name, error)
            except Exception:
                log.exception("%s: unexpected", self._thread.name)
            finally:
                with self._changed:
                    self._work = None
                    self._changed.notify_all()
