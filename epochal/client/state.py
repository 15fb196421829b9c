"""Look-ups in a state table, in both flavours: calls that block, and calls that are awaited."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from epochal.client.exchanges import Exchange, Result
from epochal.client.models import ScannedRow
from epochal.client.state_exchanges import StateExchanges, cursor_of, following
from epochal.client.transport import AsyncTransport, Transport

Arguments = ParamSpec("Arguments")
Asking = Callable[Concatenate[StateExchanges, Arguments], Exchange[Result]]


def _blocking(ask: Asking[Arguments, Result]) -> Callable[Concatenate[State, Arguments], Result]:
    @wraps(ask)
    def call(self: State, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._transport.run(ask(self._exchanges, *args, **options))

    _describe(call)
    return call


def _awaited(ask: Asking[Arguments, Result]) -> Callable[Concatenate[AsyncState, Arguments], Awaitable[Result]]:
    @wraps(ask)
    async def call(self: AsyncState, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await self._transport.run(ask(self._exchanges, *args, **options))

    _describe(call)
    return call


def _describe(call: Any) -> None:
    """``help`` says what the call gives, and not how it is asked for."""
    signature = inspect.signature(call)
    result = str(signature.return_annotation).removeprefix("Exchange[").removesuffix("]")
    call.__signature__ = signature.replace(return_annotation=result)


class State:
    """``client.application(name).state(table)``. Every answer says which epoch it is from."""

    def __init__(self, transport: Transport, application: str, table: str) -> None:
        self._transport = transport
        self._exchanges = StateExchanges(application, table)

    get = _blocking(StateExchanges.get)
    lookup = _blocking(StateExchanges.lookup)
    lookup_table = _blocking(StateExchanges.lookup_table)
    lookup_frame = _blocking(StateExchanges.lookup_frame)
    scan = _blocking(StateExchanges.scan)
    scan_table = _blocking(StateExchanges.scan_table)
    scan_frame = _blocking(StateExchanges.scan_frame)
    history = _blocking(StateExchanges.history)
    blame = _blocking(StateExchanges.blame)

    def scan_all(self, *prefix: Any, **options: Any) -> Iterator[ScannedRow]:
        """All rows of a scan, page by page; ``options`` as those of :meth:`scan`."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = self.scan(*prefix, **more)
            yield from page.items
            more = following(more, page.next_cursor)

    def scan_tables(self, *prefix: Any, **options: Any) -> Iterator[Any]:
        """All pages of a scan, as :meth:`scan_table` gives each."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = self.scan_table(*prefix, **more)
            yield page
            more = following(more, cursor_of(page))


class AsyncState:
    """``client.application(name).state(table)`` of an :class:`~epochal.client.AsyncClient`: as :class:`State`."""

    def __init__(self, transport: AsyncTransport, application: str, table: str) -> None:
        self._transport = transport
        self._exchanges = StateExchanges(application, table)

    get = _awaited(StateExchanges.get)
    lookup = _awaited(StateExchanges.lookup)
    lookup_table = _awaited(StateExchanges.lookup_table)
    lookup_frame = _awaited(StateExchanges.lookup_frame)
    scan = _awaited(StateExchanges.scan)
    scan_table = _awaited(StateExchanges.scan_table)
    scan_frame = _awaited(StateExchanges.scan_frame)
    history = _awaited(StateExchanges.history)
    blame = _awaited(StateExchanges.blame)

    async def scan_all(self, *prefix: Any, **options: Any) -> AsyncIterator[ScannedRow]:
        """As :meth:`State.scan_all`."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = await self.scan(*prefix, **more)
            for row in page.items:
                yield row
            more = following(more, page.next_cursor)

    async def scan_tables(self, *prefix: Any, **options: Any) -> AsyncIterator[Any]:
        """As :meth:`State.scan_tables`."""
        more: dict[str, Any] | None = options
        while more is not None:
            page = await self.scan_table(*prefix, **more)
            yield page
            more = following(more, cursor_of(page))
