"""The entry points of the client: blocking and asynchronous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType

from epochal.client.administration import Audit, Nodes, Projects, Sessions, Store, Tokens
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

    ``project`` defaults to ``EPOCHAL_PROJECT``, to the project of the context, or to ``default``. ``url`` defaults to
    ``EPOCHAL_URL``, to the current context of ``epochal login``, or to http://127.0.0.1:8765; ``token`` to
    ``EPOCHAL_TOKEN``, to the token of the stored login or, for a loopback URL, to the ``admin.token`` of the local
    data directory (``EPOCHAL_HOME``).

    ``waiting`` returns a context manager around each call and its retries, for callers that show progress.

    Every call raises the :class:`epochal.errors.EpochalError` of the control plane, and ``CatalogUnavailable`` without
    an answer.
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
        self.sessions = Sessions(self._transport)
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
        """Access to one application. Sends no request; the first call raises ``NotFound`` for an unknown
        application."""
        return ApplicationHandle(self._transport, name)

    def events(
        self,
        last_event_id: str | None = None,
        *,
        kinds: Sequence[str] | None = None,
        applications: Sequence[str] | None = None,
    ) -> Iterator[Event]:
        """Stream events of all or of the given applications; continues after a lost connection.

        Event ids are ``application/number``. ``kinds``: only events of these kinds; by default all but ``load``, whose
        events are not repeated after a lost connection. Raises ``CatalogUnavailable`` if the control plane stays
        unavailable.
        """
        return follow_events(self._transport, "/v1/events", last_event_id, kind=kinds, application=applications)

    def ready(self) -> bool:
        """Return whether a control plane answers and is ready."""
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
    """Asynchronous look-ups in a control plane or query node; for all other calls use :class:`~epochal.Client`.

        async with AsyncClient() as client:
            delays = client.application("flights").state("delays")
            answers = await asyncio.gather(delays.get("JFK", "LAX"), delays.get("JFK", "SFO"))

    For one event loop of asyncio. Arguments, errors and retries are those of ``Client``. ``connections``: maximum
    number of persistent connections; further calls wait for a free one.
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
        """Access to one application. Sends no request; the first call raises ``NotFound`` for an unknown
        application."""
        return AsyncApplicationHandle(self._transport, name)

    async def ready(self) -> bool:
        """Return whether a control plane answers and is ready."""
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
