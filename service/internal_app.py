"""The internal API in a separate process, which answers only drivers.

``python -m epochal.service.internal_app``: see :mod:`epochal.service.runtime.kept_process`. It loads no Spark, no
builder and no replica, and other load does not affect drivers.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from epochal.service.api import internal, internal_pods, problems
from epochal.service.api.bodies import Bodies
from epochal.service.api.fast_calls import FastCalls
from epochal.service.api.gate import Gate, add_routes, driver_gate
from epochal.service.api.http_protocol import HttpProtocol, limited
from epochal.service.api.transport import Transport
from epochal.service.domain.events import ControlEvent, topics_of
from epochal.service.domain.setting_sections import Limits
from epochal.service.domain.settings import Settings
from epochal.service.runtime.certificates import encrypted_by
from epochal.service.runtime.drivers import DriverService
from epochal.service.runtime.events.hints import hints_of
from epochal.service.runtime.internal_server import InternalOrders
from epochal.service.runtime.kept_process import ParentConnection
from epochal.service.runtime.kept_server import KeptServer
from epochal.service.runtime.service_logs import configure_logs
from epochal.service.runtime.undumpable import close_process
from epochal.wire.internal_api import LARGEST_ANSWER, takes_answer

KEEP_ALIVE_SECONDS = 30
"""Longer than the pause between two calls of a driver."""
GRACE_SECONDS = 3


def create_internal_app(settings: Settings) -> FastAPI:
    """App for drivers. The process with the public app migrates the catalog."""
    app = FastAPI(
        title="Epochal, internal",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    hints = hints_of(settings.database_url, settings.data.absolute())

    def committed(events: Sequence[ControlEvent]) -> None:
        hints.send(topics_of(events))

    app.state.hints = hints
    # The supervisor is in another process; hints about ended executions wake it.
    app.state.drivers = DriverService(settings, committed, lambda _execution: None)
    problems.install(app)
    add_routes(app, (*internal.health_router.routes, *internal.router.routes, *internal_pods.router.routes))
    # The middleware added last is the outermost.
    app.add_middleware(FastCalls, drivers=app.state.drivers)
    app.add_middleware(Bodies, limit_of=lambda path: _body_limit(path, settings.limits), limits=settings.limits)
    app.add_middleware(Gate, check=driver_gate)
    app.add_middleware(Transport, observe=lambda *_: None)
    return app


def _body_limit(path: str, limits: Limits) -> int:
    return LARGEST_ANSWER if takes_answer(path) else limits.body_bytes


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    drivers: DriverService = app.state.drivers
    app.state.hints.open(drivers.heard)
    try:
        yield
    finally:
        drivers.close()
        await run_in_threadpool(app.state.hints.close)


def main() -> None:
    parent = ParentConnection()
    close_process()
    configure_logs()
    line = parent.orders()
    if not line:
        return
    orders = InternalOrders.model_validate_json(line)
    config = uvicorn.Config(
        create_internal_app(orders.settings),
        http=limited(HttpProtocol, orders.settings.limits),
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **encrypted_by(orders.settings.internal_tls),
    )
    server = KeptServer(config, parent, orders.settings.internal_tls)
    gc.collect()
    gc.freeze()
    server.run(sockets=[socket.socket(fileno=orders.descriptor)])


if __name__ == "__main__":
    main()
