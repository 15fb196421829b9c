"""A server process that has imported modules and forks processes on request.

A forked process has its own session, environment, folder and log, no inherited descriptors, and no state except the
imports. SIGKILL ends it like any process. It starts in milliseconds instead of the seconds of CPU time for the imports
of Spark, Arrow and SQLAlchemy.

:class:`ForkServer` is the client, ``python -m epochal.testing.fork_server FD MODULE..`` the server. They are connected
by a socket pair: the server ends when its owner ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn, Self

from epochal import faults
from epochal.engine.worker_daemon import WITHOUT_THREADS, is_alone
from epochal.errors import EnvironmentProblem

GROUPS = ("epochal.sinks", "epochal.sources", "epochal.state_backends")
"""Groups of entry points that the server loads, because drivers look them up by name."""
START_SECONDS = 120.0
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")


class ForkServer:
    """Starts processes that run ``MODULE.main()`` after the import of the modules ``imports``."""

    def __init__(self, imports: Sequence[str]) -> None:
        mine, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(its.fileno()), *imports],
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env={name: value for name, value in os.environ.items() if name != faults.ENVIRONMENT} | WITHOUT_THREADS,
                start_new_session=True,
            )
        self._socket = mine
        mine.settimeout(START_SECONDS)
        if mine.recv(1) != b"\0":
            raise EnvironmentProblem("The fork server ended during its imports; its error is above.")
        mine.settimeout(None)

    def start(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkedProcess:
        """Run ``module.main()`` in a new process in the folder of the caller. Its output goes to ``log``."""
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.getcwd(),
        }
        data = json.dumps(request).encode()
        mine, its = socket.socketpair()
        with its, log.open("ab") as output:
            socket.send_fds(self._socket, [_LENGTH.pack(len(data))], [output.fileno(), its.fileno()])
            self._socket.sendall(data)
        return ForkedProcess(mine)

    def close(self) -> None:
        """Stop the server. Started processes continue."""
        self._socket.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ForkedProcess:
    """A process of a fork server, with the part of :class:`subprocess.Popen` that tests need."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; ``None`` while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises ``subprocess.TimeoutExpired``."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return None
            self.returncode = self._number()
            self._answers.close()
        return self.returncode

    def _number(self) -> int:
        data = self._answers.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(data) != _NUMBER.size:
            raise EnvironmentProblem("The fork server has ended; the state of its processes is unknown.")
        return int(_NUMBER.unpack(data)[0])


@dataclass(frozen=True)
class _Request:
    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    log: int
    answers: socket.socket


def main() -> None:
    """Run the server. In a forked process it returns like ``MODULE.main()``."""
    descriptor, *modules = sys.argv[1:]
    _import(modules)
    program: Callable[[], Any] | None = None
    with socket.socket(fileno=int(descriptor)) as requests:
        requests.sendall(b"\0")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the intermediate processes (see _fork)
        while program is None and (request := _next(requests)) is not None:
            if os.fork() == 0:
                program = _fork(request)
            else:
                os.close(request.log)
                request.answers.close()
    if program is not None:
        program()


START_THREADS = ("epochal.backends.delta_lake", "epochal.backends.iceberg")
"""Modules whose libraries start threads when they are imported: each fork imports them itself."""


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    for group in GROUPS:
        for entry in entry_points(group=group):
            if not entry.module.startswith(START_THREADS):
                entry.load()
    if not is_alone():
        sys.exit("The fork server has other threads: a lock that one of them holds in a fork would stay locked.")
    gc.collect()
    gc.freeze()  # garbage collection does not touch, and so copy, shared pages


def _next(requests: socket.socket) -> _Request | None:
    header, descriptors, _, _ = socket.recv_fds(requests, _LENGTH.size, 2)
    if not header:
        return None
    log, answers = descriptors
    left, data = _LENGTH.unpack(header)[0], b""
    while left > len(data):
        data += requests.recv(left - len(data))
    return _Request(**json.loads(data), log=log, answers=socket.socket(fileno=answers))


def _fork(request: _Request) -> Callable[[], Any]:
    """Fork: returns in the new process; its parent waits for it, reports its exit, and exits too."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process != 0:
        _report(process, request)
    os.setsid()
    request.answers.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (request.log, 1), (request.log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(request.log)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    faults.plan_from_environment()
    sys.argv = [request.module, *request.arguments]
    program: Callable[[], Any] = importlib.import_module(request.module).main
    return program


def _report(process: int, request: _Request) -> NoReturn:
    try:
        os.close(request.log)
        with suppress(OSError):  # the client can have ended
            request.answers.sendall(_NUMBER.pack(process))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with suppress(OSError):
            request.answers.sendall(_NUMBER.pack(code))
    except BaseException:  # noqa: BLE001  this process must not go on as if it were the server
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
