"""Load by the shipped client, through a load balancer."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from epochal.client import Client
from epochal.errors import EpochalError
from epochal.testing.servers.process import LOOPBACK
from epochal.testing.servers.proxy import TcpProxy
from tests.service.availability.installation import Node

CHECK_SECONDS = 0.25
WAIT_SECONDS = 10.0


class Balancer(TcpProxy):
    """Distributes connections over the control planes that were ready at the last check, in turn."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._ready: list[Node] = [node for node in nodes if node.ready()]
        self._turn = 0
        self._closed = threading.Event()
        super().__init__(0)
        threading.Thread(target=self._check, name="balancer", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _check(self) -> None:
        while not self._closed.wait(CHECK_SECONDS):
            self._ready = [node for node in self._nodes if node.ready()]

    def _connect(self) -> socket.socket:
        ready = self._ready
        for _ in ready:
            self._turn += 1
            with suppress(OSError):
                return socket.create_connection((LOOPBACK, ready[self._turn % len(ready)].port), timeout=5)
        raise ConnectionRefusedError("no control plane is ready")


class ClientLoad:
    """Runs look-ups, which must never return older state, and changes, which must be readable once answered.

    Every error of the client is a problem, because it retries on its own. ``applications`` may grow meanwhile.
    """

    def __init__(self, url: str, token: str, applications: Sequence[str], seed: int) -> None:
        self.client = Client(url, token)
        self.problems: dict[str, None] = {}
        self.lookups = 0
        self.operations: list[str] = []
        self.savepoints: dict[str, list[str]] = {}
        self._applications = applications
        self._seen: dict[str, int] = {}
        self._chance = random.Random(seed)
        self._number = 0
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_stopped, args=(work,), daemon=True)
            for work in (self._look_up, self._look_up_monotonically, self._change)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.problems["a call of the client does not end"] = None
        self.client.close()

    def _until_stopped(self, work: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            at = time.strftime("%H:%M:%S")
            try:
                work()
            except (EpochalError, AssertionError) as error:
                self.problems[f"{at} {work.__name__}: {type(error).__name__}: {error}"] = None
                self._stopped.wait(0.2)

    def _look_up(self) -> None:
        """Read the newest state of any control plane."""
        name = random.choice(self._applications)
        found = self.client.application(name).state("totals").get("all")
        assert found.value == {"total": found.epoch}, f"{name} has {found.value} at epoch {found.epoch}"
        self.lookups += 1
        self._stopped.wait(0.02)

    def _look_up_monotonically(self) -> None:
        """Read with ``min_epoch``; no control plane may return an older epoch than an earlier answer."""
        name = random.choice(self._applications)
        seen = self._seen.get(name)
        state = self.client.application(name).state("totals")
        found = state.get("all", min_epoch=seen, wait_seconds=None if seen is None else WAIT_SECONDS)
        assert found.value == {"total": found.epoch}, f"{name} has {found.value} at epoch {found.epoch}"
        assert found.epoch >= (seen or 0), f"{name} was at epoch {seen}, and is at {found.epoch}"
        self._seen[name] = found.epoch
        self.lookups += 1
        self._stopped.wait(0.02)

    def _change(self) -> None:
        self._number += 1
        number, name = self._number, self._chance.choice(list(self._applications))
        application = self.client.application(name)
        match self._chance.choice(["savepoint", "savepoint", "tag", "message", "export", "verify"]):
            case "savepoint":
                self._wait(application.savepoints.create(f"s{number}").id)
                assert application.savepoints.get(f"s{number}").epoch is not None
                self.savepoints.setdefault(name, []).append(f"s{number}")
            case "tag":
                epoch = application.epochs.list(limit=1, state="committed")[0].epoch
                application.annotations.tag(epoch, f"t{number}")
                assert f"t{number}" in {tag.name for tag in application.annotations.tags()}
            case "message":
                epoch = application.epochs.list(limit=1, state="committed")[0].epoch
                application.annotations.write_message(epoch, f"m{number}")
                assert application.annotations.message(epoch).message == f"m{number}"
            case "export":
                self._wait(application.exports.create().id)
            case _:
                self._wait(self.client.store.verify(quick=True).id)
        self._stopped.wait(self._chance.uniform(0.1, 0.5))

    def _wait(self, operation: str) -> None:
        self.operations.append(operation)
        self.client.operations.wait(operation, timeout_seconds=90)
