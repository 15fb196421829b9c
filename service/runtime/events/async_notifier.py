"""Waking coroutines from threads, without losing a ring between a look and a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Listener:
    """One coroutine that waits. Look at what you wait for *after* ``forget``, and ``wait`` when it is not there yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = asyncio.Event()

    def forget(self) -> None:
        self._rung.clear()

    async def wait(self, seconds: float) -> None:
        """Until the bell rings after ``forget``, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._rung.set)


class AsyncNotifier:
    """Rung from any thread; heard by coroutines of any event loop."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def ring(self) -> None:
        for listener in tuple(self._listeners):
            listener.wake()

    @contextmanager
    def listener(self) -> Iterator[Listener]:
        """Within a coroutine."""
        listener = Listener(asyncio.get_running_loop())
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
