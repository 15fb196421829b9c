"""A spare driver: Spark is started and trained before there is an application, and the process then becomes the driver
of one application, once.

Standard input is a Unix socket. Over it come, a line each: :class:`SpareOrders`; questions whether it still answers;
and at last the driver's orders, as JSON. It says by a line that it is ready, and answers each question. When the socket
ends without orders, nobody wants it any more, and it ends: whoever keeps spares takes them along, however that ends.
Orders may come before it is ready: what is left of the training is skipped then.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import httpx
from pydantic import ValidationError

from epochal.background.task import BackgroundTask
from epochal.driver.orders import (
    CONTROL_PLANES_VARIABLE,
    SPARE_ANSWER,
    SPARE_QUESTION,
    TOKEN_FILE_VARIABLE,
    DriverOrders,
    SpareOrders,
)
from epochal.driver.pod import fetched_orders, spark_in_this_pod
from epochal.driver.pool_client import PATIENCE_SECONDS, Keeper, NotWanted
from epochal.errors import EnvironmentProblem
from epochal.faults import declare
from epochal.wire.internal_api import CONTROL_PLANES_HEADER, WAIT_SECONDS, TakenFor
from epochal.wire.trust import trusted

log = logging.getLogger("epochal.driver")


ORPHAN_SECONDS = 20.0
"""So long a spare whose keeper is gone may take to end in order."""


_PAUSE_SECONDS = 0.5


_CALL_SECONDS = 5.0


_CONNECT_SECONDS = 2.0


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
    BackgroundTask("spare", lambda: _watch(keeper, over))


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


class Askers:
    """Whose driver this pod is, asked of all control planes in turn: the one that keeps it first."""

    def __init__(self, pod: str, environment: Mapping[str, str], patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Raises ``EnvironmentProblem`` where this is no such pod."""
        try:
            self.control_planes = environment[CONTROL_PLANES_VARIABLE].split()
            """As the last answer said."""
            self._token_file = Path(environment[TOKEN_FILE_VARIABLE])
        except KeyError as error:
            raise EnvironmentProblem(f"A spare's pod needs {error}, as its control plane gives it.") from None
        self._path = f"/internal/v1/pods/{pod}/attempt"
        self._patience_seconds = patience_seconds
        timeout = httpx.Timeout(WAIT_SECONDS + _CALL_SECONDS, connect=_CONNECT_SECONDS)
        self._http = httpx.Client(timeout=timeout, trust_env=False, verify=trusted())
        self._kept_at = time.monotonic()

    def attempt(self, ready: bool, seconds: float) -> TakenFor | None:
        """``None``: nobody's, and somebody keeps it, or did a moment ago. Raises :class:`NotWanted`."""
        why = ""
        for url in list(self.control_planes):
            try:
                # Behind one address there may be several control planes: another connection may lead to another one.
                headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}", "Connection": "close"}
                query = f"?ready={str(ready).lower()}&seconds={seconds:g}"
                answer = self._http.get(url + self._path + query, headers=headers)
            except (httpx.TransportError, OSError) as error:
                why = repr(error)
                continue
            if answer.is_success:
                said = answer.headers.get(CONTROL_PLANES_HEADER, "").split()
                self.control_planes = said or self.control_planes
            if answer.status_code == HTTPStatus.OK:
                try:
                    return TakenFor.model_validate_json(answer.content)
                except ValidationError:
                    why = "an answer that cannot be read"
            elif answer.status_code == HTTPStatus.NO_CONTENT:
                self._kept_at = time.monotonic()
                return None
            else:
                why = f"HTTP status {answer.status_code}"
        if time.monotonic() - self._kept_at > self._patience_seconds:
            raise NotWanted(f"No control plane has kept this pod for {self._patience_seconds:g} s: {why}")
        time.sleep(_PAUSE_SECONDS)
        return None

    def close(self) -> None:
        self._http.close()


class SparePod:
    """This process, until it has orders."""

    def __init__(self, pod: str, warm: Warm, environment: Mapping[str, str] = os.environ) -> None:
        """Raises ``EnvironmentProblem``."""
        self._pod = pod
        self._warm = warm
        self._environment = environment
        self._askers = Askers(pod, environment)
        self._is_ready = False
        self._taken: TakenFor | None = None
        self._is_asked = threading.Event()
        """Somebody wants this pod, or nobody does any more."""
        self._done = threading.Event()

    def orders(self) -> bytes | None:
        """Get ready, and wait for the orders of a driver; ``None``: nobody has any. Raises what fetching them does."""
        try:
            begun = self._what_to_begin_with()
        except NotWanted as reason:
            log.info("this spare ends: %s", reason)
            return None
        BackgroundTask("spare", self._ask)
        began = time.monotonic()
        warmed = self._warm(begun, self._is_asked.is_set)
        log.info("this spare is ready, after %.1f s", time.monotonic() - began)
        self._is_ready = True
        while not self._is_asked.wait(WAIT_SECONDS):
            warmed.check()
        self._done.set()
        self._askers.close()
        if self._taken is None:
            warmed.stop()
            return None
        warmed.check()
        control_planes = {CONTROL_PLANES_VARIABLE: " ".join(self._askers.control_planes)}
        name = f"{self._taken.execution}-{self._taken.attempt}"
        orders = fetched_orders(name, {**self._environment, **control_planes})
        STARTED.hit()
        return orders

    def _what_to_begin_with(self) -> SpareOrders:
        keeper = Keeper.of(self._pod, self._environment)
        while (work := keeper.work(False, WAIT_SECONDS)) is None:
            pass
        return spark_in_this_pod(SpareOrders.model_validate_json(work), self._environment)

    def _ask(self) -> None:
        try:
            while self._taken is None:
                self._taken = self._askers.attempt(self._is_ready, WAIT_SECONDS if self._is_ready else 1.0)
        except NotWanted as reason:
            log.info("this spare ends: %s", reason)
        self._is_asked.set()
        # Spark's start may hang, and what hangs is not to stay behind.
        if self._taken is None and not self._done.wait(ORPHAN_SECONDS):
            os._exit(0)
