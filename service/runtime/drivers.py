"""The service for drivers, in its own process or in the control plane's: their catalogs, tokens, code and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from starlette.concurrency import run_in_threadpool

from epochal.driver.orders import DriverOrders
from epochal.errors import CatalogUnavailable, NotFound, Unauthenticated
from epochal.service.catalog.database import Bulkhead, Database
from epochal.service.catalog.executions import ExecutionRepository
from epochal.service.catalog.inboxes import NO_CALLS, newest_calls, page_of
from epochal.service.catalog.ledger import ExecutionLedger, newest_directives
from epochal.service.catalog.models import Artifact
from epochal.service.catalog.nodes import NodeRepository
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.catalog.tokens import TokenRepository
from epochal.service.domain.events import CALL, OPERATION, ControlEvent, Topics
from epochal.service.domain.executions import DriverName
from epochal.service.domain.kubernetes.pod_identity import SPARE_PREFIX, PodIdentity
from epochal.service.domain.kubernetes.spark import orders_in_a_pod
from epochal.service.domain.nodes import HEARTBEAT_SECONDS, driver_urls
from epochal.service.domain.secrets import DriverToken, same
from epochal.service.domain.settings import Settings
from epochal.service.runtime.directives import Watch
from epochal.service.runtime.driver_orders import orders_of
from epochal.service.runtime.kept_pods import PodDeskClient
from epochal.service.runtime.machine import this_machine
from epochal.service.runtime.pod_tokens import PodTokens
from epochal.wire.projects import project_of

if TYPE_CHECKING:
    from epochal.service.runtime.artifact_cache import ArtifactCache

REMEMBERED_SECONDS = 3.0
"""Time for which a verified token is cached."""
_KEPT = 10_000

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class DriverService:
    """``committed`` is called with the events of each transaction; ``wake(execution)`` when an attempt reports its end:
    the supervisor takes the next step.

    Caches one catalog for each (execution, attempt) that calls, since the identity of a catalog never changes.
    """

    def __init__(
        self, settings: Settings, committed: Callable[[Sequence[ControlEvent]], None], wake: Callable[[str], None]
    ) -> None:
        self._bulkhead = Bulkhead(settings.database_url, settings.pools.drivers)
        self._bulkhead.database.listen(committed)
        self._settings = settings
        self._own_url = settings.internal_url
        self._nodes: tuple[str, ...] = (self._own_url,)
        self._nodes_until = 0.0
        self._directives = Watch[str](self._newest_directives)
        self._calls = Watch[int](self._newest_calls)
        self._known: dict[str, float] = {}
        self._pods = None if settings.kubernetes is None else PodTokens(settings.kubernetes.issuer)
        self.finished = wake
        self.pod_desk = PodDeskClient(settings.pods_directory)

        @lru_cache(maxsize=_KEPT)
        def catalog(execution: str, attempt: int) -> SqlCatalog:
            return SqlCatalog(self._bulkhead.database, execution, attempt)

        self.catalog = catalog

    @property
    def database(self) -> Database:
        """The database that carries out drivers' calls."""
        return self._bulkhead.database

    async def run(self, method: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """``method(*arguments)`` in a thread that is reserved for drivers."""
        return await self._bulkhead.run(method, *arguments)

    async def control_planes(self) -> tuple[str, ...]:
        """URLs of the control planes that drivers may call, this one first, as of the last few seconds."""
        if self._nodes_until < time.monotonic():
            self._nodes_until = time.monotonic() + HEARTBEAT_SECONDS
            with suppress(CatalogUnavailable):
                self._nodes = await self.run(self._read_nodes)
        return self._nodes

    def _read_nodes(self) -> tuple[str, ...]:
        with self._bulkhead.database.reading() as session:
            return driver_urls(NodeRepository(session).living(), self._own_url, this_machine())

    async def directive(self, execution: str, attempt: int, after: str, seconds: float) -> str | None:
        """Wait for a directive of the execution that is newer than ``after``. Raises ``Fenced``."""
        newest = await self._directives.wait(execution, after, seconds)
        await self.run(self._check_runs, execution, attempt)
        return newest

    async def _newest_directives(self, executions: Collection[str]) -> Mapping[str, str]:
        return await self.run(newest_directives, self._bulkhead.database, executions)

    async def calls(self, execution: str, attempt: int, after: int, through: int | None, seconds: float) -> bytes:
        """Calls of the execution's application, an ``InboxPage`` as JSON. Without ``through``, waits up to ``seconds``
        for a call.

        Raises ``NotFound``; ``Fenced`` if the attempt has ended in the meantime.
        """
        page = await self.run(page_of, self.database, execution, after, through)
        if through is not None or not seconds or not page.endswith(NO_CALLS):
            return page
        if await self._calls.wait(execution, after, seconds) is None:
            return page
        await self.run(self._check_runs, execution, attempt)
        return await self.run(page_of, self.database, execution, after, None)

    async def _newest_calls(self, executions: Collection[str]) -> Mapping[str, int]:
        return await self.run(newest_calls, self.database, executions)

    def heard(self, topics: Topics) -> None:
        """Another process has changed something; from any thread."""
        if OPERATION in topics:
            self._directives.look()
        if CALL in topics:
            self._calls.look()

    async def authenticate(self, token: str, execution: str, attempt: str, fenced_within: bool = False) -> None:
        """Verify that the token belongs to exactly this execution and attempt. There are no exceptions to this check.

        ``fenced_within``: the call itself refuses an attempt that has ended; otherwise this method does. Raises
        ``Unauthenticated``; ``NotFound`` for executions and attempts of others, whether or not they exist; ``Fenced``.
        """
        parsed = DriverToken.parse(token)
        if parsed is None:
            raise Unauthenticated("This needs the token that a driver was started with.")
        if self._known.get(token, 0.0) < time.monotonic():
            await self.run(self._check, parsed)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[token] = time.monotonic() + REMEMBERED_SECONDS
        if parsed.execution != execution or str(parsed.attempt) != attempt:
            raise NotFound("There is no such execution and attempt.")
        if not fenced_within:
            await self.run(self._check_runs, parsed.execution, parsed.attempt)

    def _check_runs(self, execution: str, attempt: int) -> None:
        with self._bulkhead.database.reading() as session:
            TokenRepository(session).check_runs(execution, attempt)

    def _check(self, token: DriverToken) -> None:
        with self._bulkhead.database.reading() as session:
            expected = TokenRepository(session).driver_token(token.execution, token.attempt)
        if expected is None or not same(expected, token.sha256):
            raise Unauthenticated("This needs the token that a driver was started with.")

    async def pod(self, token: str) -> PodIdentity:
        """The pod for which a cluster has issued the token. Raises ``Unauthenticated``; ``LauncherUnavailable`` while
        the token cannot be verified."""
        if self._pods is None:
            raise Unauthenticated("This control plane has no drivers in pods.")
        # The issuer may be slow, and the threads for drivers' calls are few.
        return await run_in_threadpool(self._pods.identity, token)

    def orders(self, execution: str, attempt: int, pod: PodIdentity, token_sha256: str) -> DriverOrders:
        """The orders of the driver in ``pod``, which is authenticated by this token from then on.

        Raises ``NotFound``, ``Fenced``, ``Unauthenticated``; ``LauncherUnavailable``: the pod retries.
        """
        kubernetes = self._settings.kubernetes
        assert kubernetes is not None
        another = f"The pod {pod.namespace}/{pod.name} is not that of this attempt's driver."
        # A spare that was taken has another name; assign_to_driver() compares it with the attempt's recorded driver.
        if pod.name != str(DriverName(execution, attempt)) and not pod.name.startswith(SPARE_PREFIX):
            raise Unauthenticated(another)
        plan = ExecutionLedger(self.database).plan(execution)
        namespace = kubernetes.namespace(project_of(plan.application))
        if (pod.namespace, pod.service_account) != (namespace, kubernetes.service_account):
            raise Unauthenticated(another)
        with self.database.writing() as session:
            TokenRepository(session).assign_to_driver(execution, attempt, pod.reference, token_sha256)
        orders = orders_of(plan, attempt, "", self._settings, this_machine())
        return orders_in_a_pod(orders, kubernetes, namespace, pod.name)

    def attempt_of(self, pod: PodIdentity) -> DriverName | None:
        """The running attempt whose driver this pod is, according to the catalog; ``None``: none yet."""
        with self._bulkhead.database.reading() as session:
            return TokenRepository(session).attempt_of(pod.reference)

    def artifact(self, execution: str, sha256: str) -> Artifact:
        """Raises ``NotFound`` unless a version of the execution's application uses the artifact."""
        with self._bulkhead.database.reading() as session:
            repository = ExecutionRepository(session)
            return repository.artifact_of(repository.get(execution), sha256)

    def file(self, artifact: Artifact) -> Path:
        """A local copy of the artifact. Raises ``ArtifactError``, ``SnapshotError``, ``EnvironmentProblem``."""
        return self._code.file(artifact)

    @cached_property
    def _code(self) -> ArtifactCache:
        # The store's libraries would double the size of this process, and only driver starts need them.
        from epochal.service.runtime.artifact_cache import artifact_cache

        return artifact_cache(self._settings, self._bulkhead.database)

    def close(self) -> None:
        self._bulkhead.close()
