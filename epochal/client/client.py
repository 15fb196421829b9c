"""The entry point of the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType

from epochal.client.administration import Audit, Nodes, Projects, Store, Tokens
from epochal.client.applications import ApplicationHandle, Applications
from epochal.client.bundles import Imports
from epochal.client.events import Webhooks, follow_events
from epochal.client.exchanges import asked
from epochal.client.location import locate
from epochal.client.models import Event
from epochal.client.operations import Operations
from epochal.client.state import AsyncState
from epochal.client.transport import AsyncTransport, Transport, Waiting
from epochal.client.versions import Artifacts
from epochal.errors import CatalogUnavailable, EnvironmentProblem


class Client:
    """A control plane, over HTTP. Close it, or use it as a context manager; one object may serve several threads.

        with Client() as client:
            artifact = client.artifacts.upload("flights.py")
            client.applications.create("flights", artifact.sha256)
            client.application("flights").state("delays").get("JFK", "LAX").value

    ``project``: whose applications, operations, tokens and so on are meant; ``EPOCHAL_PROJECT``, what the context says,
    or ``default``. ``url`` defaults to ``EPOCHAL_URL``, to the current context of ``epochal login``, or to http://127.0.0.1:8765;
    ``token`` to ``EPOCHAL_TOKEN``, to that of who has logged in there or, for a loopback URL, to the ``admin.token`` of
    the local data directory (``EPOCHAL_HOME``).

    ``waiting`` returns a context that each request is made in, with its repetitions, for a caller that shows it.

    Every call raises the :class:`epochal.errors.EpochalError` that the control plane met, and ``CatalogUnavailable``
    when none answers.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        timeout_seconds: float = 30.0,
        waiting: Waiting = nullcontext,
    ) -> None:
        self._transport = Transport(locate(url, token, project), timeout_seconds, waiting)
        self.projects = Projects(self._transport)
        self.artifacts = Artifacts(self._transport)
        self.operations = Operations(self._transport)
        self.nodes = Nodes(self._transport)
        self.applications = Applications(self._transport)
        self.imports = Imports(self._transport)
        self.tokens = Tokens(self._transport)
        self.webhooks = Webhooks(self._transport)
        self.audit = Audit(self._transport)
        self.store = Store(self._transport)

    @property
    def url(self) -> str:
        return self._transport.location.url

    @property
    def project(self) -> str:
        return self._transport.location.project

    def application(self, name: str) -> ApplicationHandle:
        """What belongs to one application. Asks nothing by itself; whether it is there shows with the first call."""
        return ApplicationHandle(self._transport, name)

    def events(
        self,
        last_event_id: str | None = None,
        *,
        kinds: Sequence[str] | None = None,
        applications: Sequence[str] | None = None,
    ) -> Iterator[Event]:
        """What changes, in all applications or these, as it happens; after a lost connection it goes on.

        An id is ``application/number``. Raises ``CatalogUnavailable`` when the control plane stays away.
        """
        return follow_events(self._transport, "/v1/events", last_event_id, kind=kinds, application=applications)

    def ready(self) -> bool:
        """Does a control plane answer, and is it ready to serve?"""
        try:
            self._transport.get("/readyz")
        except (CatalogUnavailable, EnvironmentProblem):
            return False
        return True

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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
