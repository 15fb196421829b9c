"""The object store of the chaos runs: an S3 server behind a proxy, its faults, and writes that land late."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from epochal.testing.servers.s3 import SeaweedServer, s3
from epochal.testing.servers.s3_proxy import WRITES, S3Proxy, s3_proxy

LONGER_THAN_REQUESTS_ARE_REPEATED = 25.0

DISTURBANCES = (
    "store killed",
    "store paused",
    "store slow",
    "store down",
    "store answers 503",
    "store answers 500 after writes",
    "store cuts connections",
    "store refuses",
    "writes land late",
    "writes of a dead driver land late",
)


@dataclass(frozen=True)
class ObjectStore:
    """A running server, which drivers, tasks and this process reach through the proxy."""

    server: SeaweedServer
    proxy: S3Proxy

    def disturb(self, what: str, chance: random.Random, works: Callable[[], bool]) -> None:
        """Disturb the store; it is available again on return. ``works``: whether the driver still runs."""
        match what:
            case "store killed":
                self.server.restart(kill=True)
            case "store paused":
                with self.server.paused():
                    time.sleep(chance.uniform(1, 6))
            case "store slow":
                self.proxy.delay(chance.uniform(0.03, 0.3))
                time.sleep(chance.uniform(3, 8))
            case "store down":
                self.proxy.down()
                long = chance.random() < 0.15
                time.sleep(LONGER_THAN_REQUESTS_ARE_REPEATED if long else chance.uniform(1, 6))
            case "store answers 503":
                self.proxy.refuse(503)
                time.sleep(chance.uniform(1, 6))
            case "store answers 500 after writes":
                self.proxy.answer_500_after_write(times=chance.randint(1, 5))
                time.sleep(chance.uniform(3, 6))
            case "store cuts connections":
                for moment in ("before", "after", "middle"):
                    self.proxy.cut(times=chance.randint(1, 2), moment=moment)
                time.sleep(chance.uniform(3, 6))
            case "store refuses":
                self.proxy.refuse(403, code="AccessDenied")
                time.sleep(chance.uniform(1, 5))
            case "writes land late":
                self.hold(chance, works)
                time.sleep(chance.uniform(0, 14))  # in some cases later than a repetition of the same write
            case _:
                raise ValueError(f"unknown disturbance {what!r}")
        self.proxy.heal()

    def hold(self, chance: random.Random, works: Callable[[], bool]) -> bool:
        """Keep the next writes, and wait for the first of them. Returns whether there was one."""
        self.proxy.hold(times=chance.randint(1, 3), kinds=WRITES)
        while not self.proxy.held() and works():
            time.sleep(0.02)
        return self.proxy.held() > 0

    def release_after(self, seconds: float) -> threading.Timer:
        """Let the writes that are kept land later, while the next driver runs."""
        timer = threading.Timer(seconds, self.proxy.heal)
        timer.daemon = True
        timer.start()
        return timer

    def wait_until_landed(self) -> None:
        """End all faults, and wait for the writes that were kept."""
        self.proxy.heal()
        self.proxy.release()

    def landed_late(self, bucket: str) -> set[str]:
        """Keys of the bucket that were written by a request that was kept."""
        before = f"/{bucket}/"
        return {
            request.path.removeprefix(before)
            for request in self.proxy.requests()
            if request.fault == "hold" and request.kind == "PUT" and request.path.startswith(before)
        }


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A running store, whose credentials are in the environment of this process. Raises ``ServerUnavailable``."""
    with s3() as server, with_proxy(server) as store:
        yield store


@contextmanager
def with_proxy(server: SeaweedServer) -> Iterator[ObjectStore]:
    """Put a proxy before a running server. Its clients find it in the environment of this process and its children."""
    before = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with s3_proxy(server) as proxy:
        _set_variables(proxy.environment())
        try:
            yield ObjectStore(server, proxy)
        finally:
            _set_variables(before)


def _set_variables(variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(variables)
