"""The app factory: one FastAPI app for one control plane.

If the settings have an internal port, as with ``epochal up``, another process answers drivers
(:mod:`epochal.service.internal_app`). Otherwise this app does, for tests and for programs that embed it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

import epochal
from epochal.service.api import (
    administration,
    applications,
    artifacts,
    bundles,
    calls,
    console,
    events,
    executions,
    internal,
    internal_pods,
    login,
    logs,
    nodes,
    openapi,
    operations,
    problems,
    sessions,
    snapshots,
    standing_queries,
    state,
    store,
    versions,
)
from epochal.service.api.auditing import Audit, RefusedCalls
from epochal.service.api.bodies import Bodies
from epochal.service.api.context import ControlPlane
from epochal.service.api.following import Followers
from epochal.service.api.gate import Gate, Rates, add_routes, check_binding, gate
from epochal.service.api.idempotency import Idempotency
from epochal.service.api.project_paths import ProjectPaths
from epochal.service.api.transport import Transport, believe_proxies
from epochal.service.catalog.checks import check_usable, reach_findings
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.tokens import ensure_admin_token, seed_given_token
from epochal.service.composition import (
    MakeBuilder,
    MakeSupervisor,
    compose,
    own_builder,
    threaded_supervisor,
)
from epochal.service.domain.ports import Component
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.runtime.disk_space import DiskSpace
from epochal.service.runtime.folders import prepare_folders
from epochal.service.runtime.store_claim import claim_store, confirm_claim
from epochal.wire.internal_api import LARGEST_ANSWER, takes_answer

logger = logging.getLogger(__name__)

ROUTERS = (
    nodes.health_router,
    administration.project_router,
    artifacts.router,
    applications.router,
    applications.lag_router,
    bundles.export_router,
    bundles.import_router,
    snapshots.annotation_router,
    store.router,
    versions.router,
    versions.preflight_router,
    operations.router,
    nodes.router,
    executions.router,
    executions.epoch_router,
    executions.lifecycle_router,
    calls.router,
    snapshots.savepoint_router,
    executions.transaction_router,
    executions.sink_router,
    standing_queries.router,
    snapshots.router,
    snapshots.lineage_router,
    snapshots.lineages_router,
    state.router,
    events.router,
    logs.router,
    administration.token_router,
    administration.webhook_router,
    administration.audit_router,
    sessions.router,
    login.router,
    sessions.list_router,
    console.router,
)


def create_app(
    settings: Settings,
    make_builder: MakeBuilder = own_builder,
    make_supervisor: MakeSupervisor = threaded_supervisor,
    beside: Sequence[Component] = (),
) -> FastAPI:
    """Create an app that migrates its catalog, creates the admin token and opens its components when it starts.

    ``beside``: components that are opened once the catalog is ready, before all others, and closed last. Raises
    ``OptionError`` for settings that are unsafe or cannot work; starting it raises ``CatalogVersion``,
    ``CatalogUnavailable``, ``EnvironmentProblem``, ``StoreMismatch``.
    """
    check_binding(settings)
    control = compose(settings, make_builder, make_supervisor)
    app = FastAPI(
        title="Epochal" if settings.internal_port is not None else "Epochal, with the internal API",
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.control_plane = control
    app.state.beside = beside
    app.state.rates = Rates(settings.limits)
    app.state.followers = Followers(settings.limits.followers)
    problems.install(app)
    openapi.install(app, epochal.__version__)
    for router in ROUTERS:
        add_routes(app, router.routes)
    if control.drivers is not None:
        add_routes(app, (*internal.router.routes, *internal_pods.router.routes))
        app.state.drivers = control.drivers
    limits = settings.limits
    # The middleware added last is the outermost.
    app.add_middleware(Audit, database=control.database)
    app.add_middleware(Idempotency, database=control.database, hours=limits.idempotency_hours)
    app.add_middleware(
        Bodies,
        limit_of=lambda path: _body_limit(path, limits),
        limits=limits,
        admit_to=partial(_space_for, DiskSpace(settings)),
    )
    app.add_middleware(Gate, check=gate, refused=RefusedCalls(control.database))
    app.add_middleware(Transport, observe=control.metrics.observe)
    app.add_middleware(ProjectPaths)
    believe_proxies(app, settings.trusted_proxies)
    return app


def _space_for(disk: DiskSpace, path: str) -> Callable[[int], None] | None:
    if path == "/v1/artifacts":
        return partial(disk.check, "the artifact")
    return partial(disk.check, "this part of the bundle") if _is_upload(path) else None


def _is_upload(path: str) -> bool:
    return path.startswith("/v1/imports/") and path.endswith("/content")


def _body_limit(path: str, limits: Limits) -> int:
    if path == "/v1/artifacts":
        return limits.artifact_bytes
    if _is_upload(path):
        return limits.bundle_part_bytes
    if takes_answer(path):
        return LARGEST_ANSWER
    return limits.body_bytes


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    control: ControlPlane = app.state.control_plane
    incarnation = await run_in_threadpool(_prepare, control)
    async with AsyncExitStack() as stack:
        stack.callback(control.database.close)
        stack.callback(control.supervision.close)
        if control.drivers is not None:
            stack.callback(control.drivers.close)
        for component in (*app.state.beside, *control.components):
            await run_in_threadpool(component.open)
            stack.push_async_callback(run_in_threadpool, component.close)
        await run_in_threadpool(confirm_claim, control.database, control.store, incarnation)
        yield


def _prepare(control: ControlPlane) -> str:
    """Prepare folders, catalog and store. Returns the incarnation of the installation."""
    prepare_folders(control.settings, control.isolation.user)
    for finding in check_usable(control.database):
        logger.warning(finding.sentence)
    migrate_database(control.database)
    incarnation = claim_store(control.database, control.store)
    if control.settings.authentication:
        _seed_admin_token(control)
    for finding in reach_findings(control.database, control.node.node):
        logger.warning(finding.sentence)
    if (warning := control.isolation.warning(control.settings)) is not None:
        logger.warning(warning)
    return incarnation


def _seed_admin_token(control: ControlPlane) -> None:
    shared = control.settings.given_admin_token
    if shared is None:
        ensure_admin_token(control.database, control.settings.admin_token_file)
    else:
        seed_given_token(control.database, shared)
