"""Drivers that listen for directives: one question to the catalog for all of them, a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

from epochal.errors import CatalogUnavailable
from epochal.service.runtime.events.bell import Bell

LOOK_SECONDS = 0.5
"""How often the catalog is asked without a hint."""

Newest = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Of these executions, those with directives that are not carried out, and the id of the newest one of each."""


class DirectiveWatch:
    """Of one event loop. While nobody listens nothing is asked."""

    def __init__(self, newest: Newest) -> None:
        self._newest = newest
        self._listening: set[tuple[str, str, asyncio.Future[str]]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._bell = Bell()

    def look(self) -> None:
        """Now; from any thread."""
        self._bell.ring()

    async def wait(self, execution: str, after: str, seconds: float) -> str | None:
        """The id of a directive of the execution that is newer than ``after``; ``None`` when none came in time."""
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
        with self._bell.listener() as bell:
            while self._listening:
                bell.forget()
                found: Mapping[str, str] = {}
                with suppress(CatalogUnavailable):  # heartbeats bring directives, too
                    found = await self._newest({execution for execution, _, _ in self._listening})
                for execution, after, waiting in tuple(self._listening):
                    newest = found.get(execution)
                    if newest is not None and newest > after and not waiting.done():
                        waiting.set_result(newest)
                await bell.wait(LOOK_SECONDS)
