"""Waiting for directives and calls on behalf of drivers: one query to the catalog for all, a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from epochal.errors import CatalogUnavailable
from epochal.service.runtime.events.async_notifier import AsyncNotifier

LOOK_SECONDS = 0.5
"""Interval between queries without a hint."""

Newest = TypeVar("Newest", str, int)
"""An increasing value: the id of a directive, the number of a call."""


class Watch(Generic[Newest]):
    """Belongs to one event loop. Sends no queries while no driver waits.

    ``newest``: returns, for those of the given executions that have an entry, the newest value.
    """

    def __init__(self, newest: Callable[[Collection[str]], Awaitable[Mapping[str, Newest]]]) -> None:
        self._newest: Callable[[Collection[str]], Awaitable[Mapping[str, Newest]]] = newest
        self._listening: set[tuple[str, Newest, asyncio.Future[Newest]]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._notifier = AsyncNotifier()

    def look(self) -> None:
        """Query now; from any thread."""
        self._notifier.ring()

    async def wait(self, execution: str, after: Newest, seconds: float) -> Newest | None:
        """The newest value of the execution if it is greater than ``after``; ``None`` after the timeout."""
        listener = execution, after, asyncio.get_running_loop().create_future()
        self._listening.add(listener)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await asyncio.wait_for(listener[2], seconds)
        except TimeoutError:
            return None
        finally:
            self._listening.discard(listener)

    async def _look(self) -> None:
        with self._notifier.listener() as bell:
            while self._listening:
                bell.forget()
                found: Mapping[str, Newest] = {}
                with suppress(CatalogUnavailable):  # heartbeats deliver directives, too
                    found = await self._newest({execution for execution, _, _ in self._listening})
                for execution, after, waiting in tuple(self._listening):
                    newest = found.get(execution)
                    if newest is not None and newest > after and not waiting.done():
                        waiting.set_result(newest)
                await bell.wait(LOOK_SECONDS)
