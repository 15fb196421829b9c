"""A spare driver: Spark is started and trained before there is an application, and the process then becomes the driver
of one application, once.

Standard input is a Unix socket. Over it come, a line each: :class:`SpareOrders`; questions whether it still answers;
and at last the driver's orders, as JSON. It says by a line that it is ready, and answers each question. When the socket
ends without orders, nobody wants it any more, and it ends: whoever keeps spares takes them along, however that ends.
Orders may come before it is ready: what is left of the training is skipped then.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from epochal.driver.orders import SPARE_ANSWER, SPARE_QUESTION, DriverOrders, SpareOrders
from epochal.errors import EnvironmentProblem
from epochal.faults import declare

ORPHAN_SECONDS = 20.0
"""So long a spare whose keeper is gone may take to end in order."""

STARTED = declare("W4.started", "a spare has its orders, and is the driver of an application that has not heard of it")
ANNOUNCED = declare("W5.announced", "a driver has begun its attempt, earlier ones are fenced, nothing is loaded")


@dataclass(frozen=True)
class Warmed:
    """What was made ready. ``check`` raises when it does not work any more; ``stop`` takes it back."""

    check: Callable[[], object]
    stop: Callable[[], None]


Warm = Callable[[SpareOrders, Callable[[], bool]], Warmed]
"""Gets this process ready. It asks whether somebody is waiting meanwhile."""


class Spare:
    """This process, until it has orders."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm
        self._socket = socket.socket(fileno=os.dup(0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # what is started from here must not hold the socket
        os.close(nothing)
        # Unbuffered: what has come and is not read yet has to be seen in the socket.
        self._lines = self._socket.makefile("rb", buffering=0)
        self._over = threading.Event()

    def orders(self) -> bytes | None:
        """Get ready, and wait for the orders of a driver; ``None``: nobody has any."""
        first = self._lines.readline()
        if not first:
            return None
        end_with_keeper(self._socket, self._over)
        began = time.monotonic()
        warmed = self._warm(SpareOrders.model_validate_json(first), self._is_asked)
        with suppress(BrokenPipeError):
            self._socket.sendall(json.dumps({"seconds": round(time.monotonic() - began, 3)}).encode() + b"\n")
        orders = self._read(warmed)
        self._over.set()
        if orders is None:
            warmed.stop()
        return orders

    def _read(self, warmed: Warmed) -> bytes | None:
        while line := self._lines.readline():
            if line != SPARE_QUESTION:
                return line if line.endswith(b"\n") else None
            warmed.check()
            with suppress(BrokenPipeError):
                self._socket.sendall(SPARE_ANSWER)
        return None

    def _is_asked(self) -> bool:
        """Whether something has come, the end included."""
        return bool(select.select([self._socket], [], [], 0)[0])


def end_with_keeper(keeper: socket.socket, over: threading.Event) -> None:
    """Spark's start may hang, and what hangs is not to stay behind: where ``keeper`` is at its end, and it is not
    ``over`` some time later, this process's group is killed."""
    threading.Thread(target=_watch, args=[keeper, over], name="spare", daemon=True).start()


def _watch(keeper: socket.socket, over: threading.Event) -> None:
    ended = select.poll()
    ended.register(keeper, 0)  # hanging up is told of in any case
    ended.poll()
    if not over.wait(ORPHAN_SECONDS) and _is_at_end(keeper):
        os.killpg(0, signal.SIGKILL)


def _is_at_end(keeper: socket.socket) -> bool:
    """Nothing has come that is not read yet: orders may have."""
    with suppress(BlockingIOError):
        return not keeper.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False


def become(orders: DriverOrders) -> None:
    """Go on as a driver that was started with these orders would. Raises ``EnvironmentProblem``."""
    before = os.getcwd()
    try:
        os.chdir(orders.work_directory)
    except OSError as error:
        raise EnvironmentProblem(f"The working folder {orders.work_directory} cannot be entered: {error}.") from error
    sys.path[:] = [str(orders.work_directory) if entry == before else entry for entry in sys.path]
    STARTED.hit()
