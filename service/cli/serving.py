"""The web server below ``up``: its socket, its signals, and the moment when it is ready."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from epochal.errors import EnvironmentProblem, OptionError
from epochal.service.app import create_app
from epochal.service.settings import Settings

# Event streams and followed logs never end by themselves; so long they may go on once the server is to stop.
GRACE_SECONDS = 3


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything else is started. Raises ``EnvironmentProblem``, ``OptionError``."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OptionError(
            f"{host!r} is not an address of this machine ({error.strerror}); choose another --host."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise EnvironmentProblem(_why(error, host, port)) from error
    return listener


def serve(settings: Settings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``ready`` is called when requests are answered.

    Raises what making the app raises (``CatalogVersion``, ``CatalogUnavailable``, ``OptionError``).
    """
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with _signals_end_quietly():
        _Server(config, ready).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn repeats the signal that stopped it for the handler before its own; a stop that was wanted is no error."""
    before = {number: signal.signal(number, _nothing) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(_number: int, _frame: Any) -> None:
    pass


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use, perhaps by another control plane; stop it, or choose another --port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has; choose a --port above 1023."
    return f"Cannot listen on {host}, port {port}: {error.strerror}; choose another --host or --port."
