"""A spare driver: a process that starts and trains Spark before it has an application, and then becomes the driver of
one application, once.

Standard input is a Unix socket. It delivers, one line each: :class:`SpareOrders`; liveness questions; and finally the
driver's orders, as JSON. The spare writes a line when it is ready, and answers each question. If the socket closes
without orders, the spare ends: spares thus end with the process that supervises them, however that process ends. Orders
may arrive before the spare is ready; it then skips the rest of the training.
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
from epochal.driver.pool_client import PATIENCE_SECONDS, PodClient, PodNotNeeded
from epochal.errors import EnvironmentProblem
from epochal.faults import declare
from epochal.wire.internal_api import CONTROL_PLANES_HEADER, WAIT_SECONDS, TakenFor
from epochal.wire.trust import trusted

log = logging.getLogger("epochal.driver")


ORPHAN_SECONDS = 20.0
"""Timeout for the orderly end of a spare whose parent has terminated."""


_PAUSE_SECONDS = 0.5


_CALL_SECONDS = 5.0


_CONNECT_SECONDS = 2.0


STARTED = declare(
    "W4.started", "a spare has its orders, and is the driver of an application that has not been notified"
)


ANNOUNCED = declare("W5.announced", "a driver has begun its attempt, earlier ones are fenced, nothing is loaded")


@dataclass(frozen=True)
class Warmed:
    """A prepared process. ``check`` raises if the preparation no longer works; ``stop`` releases it."""

    check: Callable[[], object]
    stop: Callable[[], None]


Warm = Callable[[SpareOrders, Callable[[], bool]], Warmed]
"""Prepares this process. The second argument returns true once the process is requested."""


class Spare:
    """This process, as a spare that waits for orders on its socket."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm
        self._socket = socket.socket(fileno=os.dup(0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # child processes must not inherit the socket
        os.close(nothing)
        # Unbuffered: unread input must remain visible in the socket.
        self._lines = self._socket.makefile("rb", buffering=0)
        self._over = threading.Event()

    def orders(self) -> bytes | None:
        """Prepare the process and wait for the orders of a driver; ``None``: the socket closed without orders."""
        first = self._lines.readline()
        if not first:
            return None
        end_with_parent(self._socket, self._over)
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
        """Return true if input has arrived, including the end of input."""
        return bool(select.select([self._socket], [], [], 0)[0])


def end_with_parent(parent: socket.socket, over: threading.Event) -> None:
    """Kill this process's group if ``parent`` is closed and ``over`` is not set within ``ORPHAN_SECONDS``: the start of
    Spark may hang, and a hanging process must not remain."""
    BackgroundTask("spare", lambda: _watch(parent, over))


def _watch(parent: socket.socket, over: threading.Event) -> None:
    ended = select.poll()
    ended.register(parent, 0)  # poll reports POLLHUP without registration
    ended.poll()
    if not over.wait(ORPHAN_SECONDS) and _is_at_end(parent):
        os.killpg(0, signal.SIGKILL)


def _is_at_end(parent: socket.socket) -> bool:
    """Return true if the socket is closed and has no unread input; unread input may be orders."""
    with suppress(BlockingIOError):
        return not parent.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False


def become(orders: DriverOrders) -> None:
    """Enter the working folder, as a driver started with these orders. Raises ``EnvironmentProblem``."""
    before = os.getcwd()
    try:
        os.chdir(orders.work_directory)
    except OSError as error:
        raise EnvironmentProblem(f"The working folder {orders.work_directory} cannot be entered: {error}.") from error
    sys.path[:] = [str(orders.work_directory) if entry == before else entry for entry in sys.path]
    STARTED.hit()


class AttemptClient:
    """Client that requests this pod's attempt from the control planes in turn, beginning with the supervising one."""

    def __init__(self, pod: str, environment: Mapping[str, str], patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Raises ``EnvironmentProblem`` if this is not the pod of a spare."""
        try:
            self.control_planes = environment[CONTROL_PLANES_VARIABLE].split()
            """URLs according to the last answer."""
            self._token_file = Path(environment[TOKEN_FILE_VARIABLE])
        except KeyError as error:
            raise EnvironmentProblem(
                f"The environment of a spare's pod lacks {error}, which its control plane sets."
            ) from None
        self._path = f"/internal/v1/pods/{pod}/attempt"
        self._patience_seconds = patience_seconds
        timeout = httpx.Timeout(WAIT_SECONDS + _CALL_SECONDS, connect=_CONNECT_SECONDS)
        self._http = httpx.Client(timeout=timeout, trust_env=False, verify=trusted())
        self._kept_at = time.monotonic()

    def attempt(self, ready: bool, seconds: float) -> TakenFor | None:
        """The attempt that has taken this pod. ``None``: none yet, and a control plane supervises the pod or did so
        recently. Raises :class:`PodNotNeeded`."""
        why = ""
        for url in list(self.control_planes):
            try:
                # One address may lead to several control planes: a new connection may reach another one.
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
            raise PodNotNeeded(f"No control plane has supervised this pod for {self._patience_seconds:g} s: {why}")
        time.sleep(_PAUSE_SECONDS)
        return None

    def close(self) -> None:
        self._http.close()


class SparePod:
    """This process, as a spare in a pod that waits for orders from a control plane."""

    def __init__(self, pod: str, warm: Warm, environment: Mapping[str, str] = os.environ) -> None:
        """Raises ``EnvironmentProblem`` if ``environment`` is not that of a spare's pod."""
        self._pod = pod
        self._warm = warm
        self._environment = environment
        self._attempt_client = AttemptClient(pod, environment)
        self._is_ready = False
        self._taken: TakenFor | None = None
        self._is_asked = threading.Event()
        """Set when an attempt has taken this pod, or the pod is no longer needed."""
        self._done = threading.Event()

    def orders(self) -> bytes | None:
        """Prepare the process and wait for the orders of a driver; ``None``: the pod is no longer needed.

        Raises the errors of :func:`fetched_orders`.
        """
        try:
            begun = self._what_to_begin_with()
        except PodNotNeeded as reason:
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
        self._attempt_client.close()
        if self._taken is None:
            warmed.stop()
            return None
        warmed.check()
        control_planes = {CONTROL_PLANES_VARIABLE: " ".join(self._attempt_client.control_planes)}
        name = f"{self._taken.execution}-{self._taken.attempt}"
        orders = fetched_orders(name, {**self._environment, **control_planes})
        STARTED.hit()
        return orders

    def _what_to_begin_with(self) -> SpareOrders:
        client = PodClient.of(self._pod, self._environment)
        while (work := client.work(False, WAIT_SECONDS)) is None:
            pass
        return spark_in_this_pod(SpareOrders.model_validate_json(work), self._environment)

    def _ask(self) -> None:
        try:
            while self._taken is None:
                self._taken = self._attempt_client.attempt(self._is_ready, WAIT_SECONDS if self._is_ready else 1.0)
        except PodNotNeeded as reason:
            log.info("this spare ends: %s", reason)
        self._is_asked.set()
        # The start of Spark may hang, and a hanging process must not remain.
        if self._taken is None and not self._done.wait(ORPHAN_SECONDS):
            os._exit(0)
