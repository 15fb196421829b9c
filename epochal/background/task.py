"""A background task: one function call in a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from epochal.background.service import log_failure

Result = TypeVar("Result")


class BackgroundTask(Generic[Result]):
    """Calls ``work`` once in a daemon thread, which starts immediately.

    An error is logged. With ``raises=True`` it is raised by :meth:`result` instead.
    """

    def __init__(self, name: str, work: Callable[[], Result], *, raises: bool = False) -> None:
        self.name = name
        self._work = work
        self._raises = raises
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the call. Returns ``False`` if it has not ended in time."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self, timeout: float | None = None) -> Result:
        """Return or raise what the call has returned or raised. Raises ``TimeoutError``."""
        if not self.wait(timeout):
            raise TimeoutError(f"{self.name} has not ended within {timeout:g} s.")
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 stored for the caller, or logged
            self._error = error
            if not self._raises:
                log_failure(self.name, error)
