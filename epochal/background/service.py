"""A background service: a step that a separate thread repeats, with one life cycle and one format of its log."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from epochal.background.retries import Backoff
from epochal.errors import EpochalError

log = logging.getLogger("epochal.background")

LONGEST_PAUSE_SECONDS = 5.0
"""Longest pause between two failing steps, unless the interval is longer."""
STOP_SECONDS = 5.0
"""Timeout for the step under way when a service is stopped."""
_FIRST_PAUSE_SECONDS = 0.1

Step = Callable[[], float | None]
"""One step of a service. Returns the seconds until the next one; ``None`` means the service's interval."""
Wait = Callable[[threading.Event, float | None], object]
"""Waits for the event, at most for a number of seconds."""


@dataclass(frozen=True)
class Health:
    """State of a service. ``failures``: number of steps that have failed since the last success, and ``error`` the
    message of the latest of them."""

    running: bool
    failures: int
    error: str | None


class BackgroundService:
    """Repeats a step in a daemon thread until it is stopped.

    A step that raises is logged and repeated after a pause, which doubles with each failure up to
    ``LONGEST_PAUSE_SECONDS``, or to the interval if that is longer. Errors that the environment causes
    (``EpochalError``, ``OSError``) are logged as one line when they first appear, others with their traceback.
    A step may call :meth:`stop`: it is then the last one.
    """

    def __init__(
        self,
        name: str,
        step: Step,
        interval: float | None,
        wake: Callable[[], object] | None = None,
        *,
        delay: float | None = 0.0,
        niceness: int = 0,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """
        :param name: name of the thread, and of the service in the log
        :param interval: seconds between two steps; ``None``: until :meth:`wake`
        :param wake: called by :meth:`wake` and :meth:`stop`, to interrupt a step that blocks
        :param delay: seconds before the first step; ``None``: until :meth:`wake`
        :param niceness: added to the thread's scheduling priority where the system supports it (Linux)
        :param wait: replaces the wait between steps; for tests
        """
        self.name = name
        self._step = step
        self._interval = interval
        self._interrupt = wake
        self._delay = delay
        self._niceness = niceness
        self._wait = wait
        first = _FIRST_PAUSE_SECONDS if interval is None else interval
        self._backoff = Backoff(max(first, 0.01), max(first, LONGEST_PAUSE_SECONDS))
        self._failures = 0
        self._error: str | None = None
        self._event = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. A service is started once."""
        self._thread.start()

    def wake(self) -> None:
        """Run the next step immediately, or after the step under way."""
        self._event.set()
        if self._interrupt is not None:
            self._interrupt()

    def stop(self, timeout: float | None = STOP_SECONDS) -> bool:
        """Run no further step, and wait for the step under way; ``timeout=0`` does not wait, ``None``
        waits without limit.

        Returns ``False`` if that step has not ended in time; it then ends with the process. Idempotent.
        """
        self._stopping.set()
        self.wake()
        if not self._thread.is_alive() or self._thread is threading.current_thread():
            return True
        if timeout is None or timeout > 0:
            self._thread.join(timeout)
            if timeout is not None and self._thread.is_alive():
                log.warning("%s did not stop within %g s", self.name, timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> BackgroundService:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def stopping(self) -> bool:
        """``True`` after :meth:`stop`. Long steps check it and end early."""
        return self._stopping.is_set()

    @property
    def health(self) -> Health:
        return Health(self._thread.is_alive() and not self.stopping, self._failures, self._error)

    def pause(self, seconds: float) -> bool:
        """Pause within a step. Returns ``True``, immediately, when the service stops."""
        return self._stopping.wait(seconds)

    def _run(self) -> None:
        if self._niceness:
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        if self._delay != 0:
            self._wait(self._event, self._delay)
        while not self.stopping:
            self._event.clear()
            if self._stopping.is_set():  # stopped between the two lines above
                return
            pause = self._repeat()
            if (pause is None or pause > 0) and not self.stopping:
                self._wait(self._event, pause)

    def _repeat(self) -> float | None:
        """Run one step. Returns the pause after it."""
        try:
            pause = self._step()
        except Exception as error:  # noqa: BLE001 every error is logged, and the step is repeated
            return self._failed(error)
        if self._failures:
            log.info("%s works again after %d failures", self.name, self._failures)
            self._failures, self._error = 0, None
        return self._interval if pause is None else pause

    def _failed(self, error: Exception) -> float:
        pause = self._backoff.pause(self._failures)
        self._failures += 1
        message = f"{type(error).__name__}: {error}"
        if message != self._error or not is_expected(error):
            log_failure(self.name, error, f", and is repeated in {pause:.1f} s")
        self._error = message
        return pause


def is_expected(error: BaseException) -> bool:
    """``True`` if the environment causes the error, rather than a defect."""
    return isinstance(error, (EpochalError, OSError))


def log_failure(name: str, error: BaseException, consequence: str = "") -> None:
    """The one log record of failures in the background: one line for expected errors, a traceback for others."""
    if is_expected(error):
        log.warning("%s failed%s: %s", name, consequence, error)
    else:
        log.error("%s failed%s", name, consequence, exc_info=error)
