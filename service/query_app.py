"""Worker of a query node: answers look-ups and related lists.

``python -m epochal.service.query_app``: see :mod:`epochal.service.runtime.kept_process`.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

import epochal
from epochal.background.service import BackgroundService
from epochal.errors import EnvironmentProblem, EpochalError, MisdirectedRequest
from epochal.service.api import (
    applications,
    executions,
    nodes,
    openapi,
    problems,
    snapshots,
    standing_queries,
    state,
    versions,
)
from epochal.service.api.access import changes_something, requires
from epochal.service.api.bodies import Bodies
from epochal.service.api.context import Node, QueryNode
from epochal.service.api.gate import Gate, Rates, add_routes, check_binding, gate
from epochal.service.api.lookup_protocol import protocol_of
from epochal.service.api.project_paths import ProjectPaths
from epochal.service.api.transport import Transport, believe_proxies
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import CursorKey
from epochal.service.catalog.lineage_bounds import CatalogLineages
from epochal.service.queries.applications import ApplicationQueries, LoadService
from epochal.service.queries.executions import EpochService, ExecutionService
from epochal.service.queries.lifecycle import LifecycleHistory
from epochal.service.queries.lineage.service import LineageService
from epochal.service.queries.nodes import NodeService
from epochal.service.queries.snapshots import SnapshotDirectory, SnapshotService
from epochal.service.queries.standing_queries import StandingQueryDirectory
from epochal.service.query_composition import QueryOrders
from epochal.service.runtime.authenticator import Authenticator
from epochal.service.runtime.certificates import encrypted_by
from epochal.service.runtime.kept_process import ParentConnection
from epochal.service.runtime.kept_server import KeptServer
from epochal.service.runtime.metrics import Metrics
from epochal.service.runtime.metrics import Node as NodeMetrics
from epochal.service.runtime.replicas.lag import ReplicaLags
from epochal.service.runtime.replicas.shared import SharedReplicas
from epochal.service.runtime.service_logs import configure_logs
from epochal.service.runtime.standing_queries import StandingQueriesInForce
from epochal.service.runtime.undumpable import close_process
from epochal.snapshots.lineage_bounds import LineageStore
from epochal.wire.tokens import Role

log = logging.getLogger("epochal.query")

SERVED = (
    nodes.health_router,
    applications.router,
    applications.lag_router,
    versions.router,
    executions.router,
    snapshots.savepoint_router,
    snapshots.annotation_router,
    state.router,
    snapshots.router,
    executions.epoch_router,
    executions.lifecycle_router,
    snapshots.lineage_router,
    snapshots.lineages_router,
    nodes.router,
    standing_queries.router,
)
"""A query node serves the read-only routes of these."""
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
GRACE_SECONDS = 3
WORKER_CONNECTIONS = 8
"""Catalog connections of each worker: for tokens, and for look-ups that replicas cannot answer."""
_LOOK_SECONDS = 1.0


def compose_worker(orders: QueryOrders) -> tuple[QueryNode, SharedReplicas]:
    """Compose a worker and the replicas that it reads, without opening anything or connecting."""
    settings = orders.settings
    database = Database(settings.database_url, WORKER_CONNECTIONS)
    store = LineageStore(settings.store_url, CatalogLineages(database))
    directory = SnapshotDirectory(database)
    replicas = SharedReplicas(orders.folder, store)
    node = QueryNode(
        settings=settings,
        database=database,
        store=store,
        authenticator=Authenticator(database, settings.authentication, settings.oidc, settings.sessions),
        cursor_key=CursorKey(database),
        metrics=Metrics(node=NodeMetrics(replicas=ReplicaLags(database, replicas))),
        snapshots=directory,
        replicas=replicas,
        registered=ApplicationQueries(database),
        executions=ExecutionService(database),
        lifecycle_history=LifecycleHistory(database),
        nodes=NodeService(database),
        load=LoadService(database),
        epochs=EpochService(database, store),
        manifests=SnapshotService(database, directory, store),
        lineage=LineageService(database, store),
        standing_queries=StandingQueryDirectory(StandingQueriesInForce(database, store)),
    )
    return node, replicas


def create_query_app(node: QueryNode) -> FastAPI:
    """App of a query node. It refuses all other calls of the API, and names control planes in the answer."""
    check_binding(node.settings)
    app = FastAPI(
        title="Epochal, query node",
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.control_plane = node
    app.state.rates = Rates(node.settings.limits)
    problems.install(app)
    openapi.install(app, epochal.__version__)
    for router in SERVED:
        add_routes(app, [route for route in router.routes if not changes_something(_endpoint(route))])
    app.add_api_route("/v1/{path:path}", elsewhere, methods=METHODS, include_in_schema=False)
    limit = node.settings.limits.body_bytes
    app.add_middleware(Bodies, limit_of=lambda _path: limit, limits=node.settings.limits)
    app.add_middleware(Gate, check=gate)
    app.add_middleware(Transport, observe=node.metrics.observe)
    app.add_middleware(ProjectPaths)
    believe_proxies(app, node.settings.trusted_proxies)
    return app


@requires(Role.VIEWER)
def elsewhere(request: Request, node: Node) -> None:
    urls = node.nodes.control_planes()
    raise MisdirectedRequest(
        f"This query node is read-only; send {request.method} {request.url.path} to a control plane: "
        f"{' or '.join(urls) or 'none of this catalog is running'}."
    )


def _endpoint(route: BaseRoute) -> object:
    return getattr(route, "endpoint", None)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    node: QueryNode = app.state.control_plane
    await run_in_threadpool(node.replicas.open)
    try:
        yield
    finally:
        await run_in_threadpool(node.replicas.close)
        node.database.close()


def main() -> None:
    parent = ParentConnection()
    close_process()
    access_log = configure_logs()
    line = parent.orders()
    if not line:
        return
    orders = QueryOrders.model_validate_json(line)
    try:
        node, replicas = compose_worker(orders)
        app = create_query_app(node)
        listener = _listen(orders.settings.host, orders.settings.port)
    except EpochalError as error:
        parent.failed(error)
        return
    config = uvicorn.Config(
        app,
        http=protocol_of(app),
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **encrypted_by(orders.settings.tls),
    )
    server = KeptServer(config, parent, orders.settings.tls)
    BackgroundService("index", lambda: _look_after(replicas, server), _LOOK_SECONDS, delay=_LOOK_SECONDS).start()
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A socket of this worker on the node's port: connections are distributed over listening workers, and none waits
    for a dead one. Raises ``EnvironmentProblem``."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise EnvironmentProblem(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    return listener


def _look_after(replicas: SharedReplicas, server: KeptServer) -> None:
    """End the worker when its replicas have been replaced; the next worker opens the new ones."""
    if server.started and not server.should_exit and not replicas.is_current():
        log.warning("the replicas were replaced; worker %d ends, and another one reads them", os.getpid())
        server.end()


if __name__ == "__main__":
    main()
