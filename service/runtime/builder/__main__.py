"""``python -m epochal.service.runtime.builder N``: the warm process from which a child is forked for each request.

Everything that a pipeline imports is imported here, once, without running any author's code; forking then costs
milliseconds. Requests come over a Unix socket that is standard input: each is a separate connection, sent as a file
descriptor, from which the child reads its request and to which it writes its answer. A request that needs Spark with
default options goes to one of ``N`` warm children, which have Spark started, if one is ready.
With the argument ``once``, the warm children start immediately and are not replaced.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

import epochal.connectors
import epochal.pipeline.pipeline  # noqa: F401
from epochal.background.task import BackgroundTask
from epochal.service.domain.building import FOR_WARM, ONCE, BuildRequest
from epochal.service.runtime.builder.child import answer
from epochal.service.runtime.builder.warm import AFTER_DRIVERS, FOR_ONE_REQUEST, WarmChildren

LOOK_SECONDS = 1.0


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    _close_standard_input()
    # The exit codes of children are not used.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    number = int(sys.argv[1])
    warm = WarmChildren(number, _serve, control.close, FOR_ONE_REQUEST if sys.argv[-1] == ONCE else AFTER_DRIVERS)
    shown: list[tuple[int, bool]] = []
    while True:
        if warm.states != shown:
            shown = _tell(control, warm.states) or shown
        if number and not select.select([control], [], [], LOOK_SECONDS)[0]:
            warm.step()
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        for descriptor in descriptors:
            if (message != FOR_WARM or not warm.take(descriptor)) and os.fork() == 0:
                control.close()
                warm.forget()
                _begin(descriptor)
            os.close(descriptor)


def _tell(control: socket.socket, states: list[tuple[int, bool]]) -> list[tuple[int, bool]] | None:
    """Notify the control plane. ``None``: its socket buffer is full."""
    try:
        control.send(json.dumps(states).encode() + b"\n", socket.MSG_DONTWAIT)
    except OSError:
        return None
    return states


def _begin(descriptor: int) -> NoReturn:
    # Spark's JVM must be waited for, and leads no session: an interrupt of the control plane's terminal is not its.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _serve(descriptor)


def _serve(descriptor: int) -> NoReturn:
    code = 1
    try:
        with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
            BackgroundTask("caller", lambda: _end_with_caller(connection.fileno()))
            result = answer(BuildRequest.model_validate_json(stream.readline()))
            stream.write(result.model_dump_json().encode())
            stream.flush()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_with_caller(descriptor: int) -> None:
    """Kill this process group, with Spark's JVM, when the caller hangs up. Its successor starts long work again."""
    ended = select.poll()
    ended.register(descriptor, 0)  # a hang-up is always reported
    ended.poll()
    os.killpg(0, signal.SIGKILL)


def _close_standard_input() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    main()
