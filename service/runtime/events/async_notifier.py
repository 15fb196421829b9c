"""Waking coroutines from threads, without losing a notification between a check and a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Listener:
    """One waiting coroutine. Call ``forget``, then check the condition, then ``wait`` if it does not hold yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = asyncio.Event()

    def forget(self) -> None:
        self._rung.clear()

    async def wait(self, seconds: float) -> None:
        """Wait for the first notification after ``forget``, at most ``seconds``."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: no coroutine is waiting
            self._loop.call_soon_threadsafe(self._rung.set)


class AsyncNotifier:
    """Notifies coroutines of any event loop; callable from any thread."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def ring(self) -> None:
        for listener in tuple(self._listeners):
            listener.wake()

    @contextmanager
    def listener(self) -> Iterator[Listener]:
        """Register the calling coroutine for the duration of the block."""
        listener = Listener(asyncio.get_running_loop())
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
