"""Web server of ``up``: signals, readiness and startup failures."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from epochal.service.api.lookup_protocol import protocol_of
from epochal.service.app import create_app
from epochal.service.composition import threaded_supervisor
from epochal.service.domain.settings import Settings
from epochal.service.runtime.certificates import encrypted_by
from epochal.service.runtime.internal_server import InternalServer
from epochal.service.runtime.service_logs import configure_logs
from epochal.service.runtime.tls_server import TlsServer
from epochal.service.runtime.undumpable import close_process

# Seconds that event streams and followed logs may continue after a stop; they never end on their own.
GRACE_SECONDS = 3


def serve(settings: Settings, listener: socket.socket, internal: InternalServer, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``internal`` serves the drivers; ``ready`` is called once requests are answered.

    Raises the errors of creating or starting the app (``CatalogVersion``, ``CatalogUnavailable``, ``OptionError``,
    ..).
    """
    close_process()
    make_supervisor = partial(threaded_supervisor, can_answer=internal.answers)
    app = create_app(settings, make_supervisor=make_supervisor, beside=[internal])
    failures = _remember_failures(app)
    config = uvicorn.Config(
        app,
        http=protocol_of(app),
        log_config=None,
        access_log=configure_logs(),
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **encrypted_by(settings.tls),
    )
    # A startup failure is reported once, as a sentence; uvicorn would add a traceback.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    with _signals_end_quietly():
        try:
            _Server(config, settings, ready).run(sockets=[listener])
        except SystemExit:
            # uvicorn exits this way when the app could not start.
            if not failures:
                raise
    if failures:
        raise failures[0]


class _Server(TlsServer):
    def __init__(self, config: uvicorn.Config, settings: Settings, ready: Callable[[], None]) -> None:
        super().__init__(config, settings.tls)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
            self._ready()


def _remember_failures(app: FastAPI) -> list[Exception]:
    """Record the exceptions of the app's lifespan in a list; uvicorn does not expose why an app could not start."""
    failures: list[Exception] = []
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def remembering(started: Any) -> AsyncIterator[Any]:
        try:
            async with lifespan(started) as state:
                yield state
        except Exception as error:
            failures.append(error)
            raise

    app.router.lifespan_context = remembering
    return failures


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again for the previous handler after a requested stop."""
    before = {number: signal.signal(number, _nothing) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(_number: int, _frame: Any) -> None:
    pass
