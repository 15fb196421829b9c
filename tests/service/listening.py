"""Applications served on real sockets, started and stopped many times in one process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.routing import BaseRoute

from epochal.service.api.lookup_protocol import protocol_of
from epochal.service.domain.settings import Settings

_SECONDS = 60
_HOST = "127.0.0.1"


@contextmanager
def listening(app: FastAPI, settings: Settings) -> Iterator[None]:
    """Serve ``app`` on the port of ``settings`` until the block ends. Raises ``AssertionError`` if the server does
    not start."""
    app.router.routes = _routes(app)
    server = _Server(
        uvicorn.Config(
            app,
            http=protocol_of(app),
            host=settings.host,
            port=settings.port,
            log_level="warning",
            proxy_headers=False,
        )
    )
    _wait_for(server.begin())
    try:
        yield
    finally:
        _wait_for(server.shutdown())


@asynccontextmanager
async def listening_here(app: FastAPI, port: int) -> AsyncIterator[str]:
    """Serve ``app`` on the caller's event loop as well, so that its handlers run in the caller's thread. Returns the
    URL."""
    server = _Server(
        uvicorn.Config(
            app, http=protocol_of(app), host=_HOST, port=port, log_level="warning", lifespan="off", proxy_headers=False
        )
    )
    await server.begin()
    try:
        yield f"http://{_HOST}:{port}"
    finally:
        await server.shutdown()


class _Server(uvicorn.Server):
    """uvicorn on an event loop that all servers share. uvicorn's own ``run`` starts a thread and polls for its end
    ten times a second, which costs a third of a second in each test."""

    async def begin(self) -> None:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        try:
            await self.startup()
        except SystemExit:
            raise AssertionError("the server did not start; its log says why") from None
        await self.on_tick(0)

    async def shutdown(self, sockets: Any = None) -> None:
        for listener in self.servers:
            listener.close()
        while self.server_state.connections or self.server_state.tasks:
            for connection in list(self.server_state.connections):
                connection.shutdown()
            await asyncio.sleep(0.005)
        await self.lifespan.shutdown()


_shared: dict[str, list[BaseRoute]] = {}


def _routes(app: FastAPI) -> list[BaseRoute]:
    """The routes of the first application with this title: they are equal for all, and FastAPI takes a tenth of a
    second to prepare them."""
    return _shared.setdefault(app.title, app.router.routes)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="servers", daemon=True).start()
    return loop


def _wait_for(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, _loop()).result(_SECONDS)
