"""The entry point of the client for programs that are asynchronous: feature servers, web applications."""

from __future__ import annotations

from types import TracebackType

from epochal.client.exchanges import asked
from epochal.client.location import locate
from epochal.client.state import AsyncState
from epochal.client.transport import AsyncTransport
from epochal.errors import CatalogUnavailable, EnvironmentProblem


class AsyncClient:
    """Look-ups of a control plane or query node, over HTTP, by ``await``; all else is :class:`~epochal.Client`'s.

        async with AsyncClient() as client:
            delays = client.application("flights").state("delays")
            answers = await asyncio.gather(delays.get("JFK", "LAX"), delays.get("JFK", "SFO"))

    Of one event loop of asyncio. Calls, errors, repetitions and where the control plane is are those of ``Client``.
    ``connections``: at most so many at once, which are kept; calls that find none free wait for one.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        timeout_seconds: float = 30.0,
        connections: int = 100,
    ) -> None:
        self._transport = AsyncTransport(locate(url, token, project), timeout_seconds, connections)

    @property
    def url(self) -> str:
        return self._transport.location.url

    def application(self, name: str) -> AsyncApplicationHandle:
        """What belongs to one application. Asks nothing by itself; whether it is there shows with the first call."""
        return AsyncApplicationHandle(self._transport, name)

    async def ready(self) -> bool:
        """Does a control plane answer, and is it ready to serve?"""
        try:
            await self._transport.send(asked("/readyz"))
        except (CatalogUnavailable, EnvironmentProblem):
            return False
        return True

    async def aclose(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncApplicationHandle:
    """``client.application(name)``"""

    def __init__(self, transport: AsyncTransport, name: str) -> None:
        self.name = name
        self._transport = transport

    def state(self, table: str) -> AsyncState:
        """Look-ups in one state table."""
        return AsyncState(self._transport, self.name, table)
