"""The key/value store of the SDG paper, called over HTTP: a control plane, PostgreSQL, a driver with Spark and the
callers, all on this machine in separate processes. Calls are answered when their epoch has committed.

PostgreSQL syncs its commits. The cores that each process used are listed, because in production they would run on
several machines.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.callers import APPLICATION
from benchmarks.cpu import children, cpu_seconds, cpu_seconds_of_tree
from benchmarks.result import Result, at_least, at_most, number, percentile
from benchmarks.running import PATIENCE_SECONDS
from epochal.client import Client
from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import ControlPlane, control_plane, process_id
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from epochal.wire.calls import MOST_CALLS

STORE = Path(__file__).parents[2] / "examples" / "sdg" / "key_value_store.py"
SERVED = """from epochal import Pipeline
from .key_value_store import KeyValueStore

pipeline = Pipeline("key-value-store")
pipeline.program(KeyValueStore).serve()
"""
CONNECTIONS = 40
WARM_SECONDS, SECONDS = 60, 15
"""A JVM warms up for more than a minute; earlier rates are not representative."""
CALLERS, CALLS_OF_EACH, PAUSE_SECONDS = 4, 25, 1.0
"""Maximum of the random pause of a caller between an answer and its next single call."""
CALLS_A_SECOND, EPOCHS = 20_000, 2.0


def run(folder: Path) -> list[Result]:
    with running_store(folder) as (plane, server, application):
        batches(plane, WARM_SECONDS, "warm")
        before = cpu_of_all(plane, server, application)
        found = batches(plane, SECONDS, "measured")
        after = cpu_of_all(plane, server, application)
        epochs = epochs_of(application)
        cores = {name: (after[name] - before[name]) / found["seconds"] for name in after}
        loaded = Singles.made(plane, application)
    shares = ", ".join(f"{name} {share:.2f}" for name, share in cores.items())
    how = f"{CONNECTIONS} connections, requests of {MOST_CALLS:,}, alternating puts and gets; cores: {shares}"
    return [
        at_least("calls answered after commit", found["calls"] / found["seconds"], CALLS_A_SECOND, "/s", how, digits=0),
        number("a request of 1,000 calls, p50", found["p50"], "s", f"epochs of {epochs:.2f} s (median)"),
        number("a request of 1,000 calls, p99", found["p99"], "s"),
        at_most("a single call, p50", loaded.epochs(0.5), EPOCHS, "epochs", loaded.how),
        number("a single call, p99", loaded.epochs(0.99), "epochs"),
    ]


@contextmanager
def running_store(folder: Path) -> Iterator[tuple[ControlPlane, PostgresqlServer, ApplicationHandle]]:
    archive = folder / "store.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("pipeline.py", SERVED)
        written.write(STORE, STORE.name)
    with postgresql(durable=True) as server:
        environment = {"EPOCHAL_DATABASE_URL": server.create_database()}
        with control_plane(folder, environment) as plane, plane.client() as client:
            artifact = client.artifacts.upload(archive)
            client.applications.create(APPLICATION, artifact.sha256, configuration={"epoch_interval_seconds": 0.0})
            application = client.application(APPLICATION)
            application.entries["put"].call(key="first", value="1", wait_seconds=PATIENCE_SECONDS)
            yield plane, server, application


def batches(plane: ControlPlane, seconds: float, name: str) -> dict[str, float]:
    """Run the callers. Raises ``RuntimeError`` if a call has a wrong answer or none."""
    arguments = [plane.url, _token(plane), seconds, CONNECTIONS, name]
    command = [sys.executable, "-m", "benchmarks.callers", *map(str, arguments)]
    found = dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    if found["failures"]:
        raise RuntimeError(f"{found['failures']:.0f} requests of {MOST_CALLS:,} calls had wrong answers or none")
    return found


@dataclass(frozen=True)
class Singles:
    """Seconds of each single call, and the median seconds of the epochs during the calls."""

    seconds: Sequence[float]
    epoch: float

    @classmethod
    def made(cls, plane: ControlPlane, application: ApplicationHandle) -> Singles:
        seconds: list[float] = []
        first = _head(application) + 1
        callers = [
            threading.Thread(target=_call_singly, args=(plane, random.Random(number), seconds))
            for number in range(CALLERS)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        if len(seconds) != CALLERS * CALLS_OF_EACH:
            raise RuntimeError(f"{len(seconds)} of {CALLERS * CALLS_OF_EACH} single calls were answered")
        return cls(seconds, epochs_of(application, first))

    def epochs(self, share: float) -> float:
        return percentile(self.seconds, share) / self.epoch

    @property
    def how(self) -> str:
        return f"{CALLERS} callers; p50 {percentile(self.seconds, 0.5):.2f} s, epochs of {self.epoch:.2f} s (median)"


def _call_singly(plane: ControlPlane, chance: random.Random, seconds: list[float]) -> None:
    with Client(plane.url, _token(plane)) as client:
        entries = client.application(APPLICATION).entries
        for place in range(CALLS_OF_EACH):
            time.sleep(chance.random() * PAUSE_SECONDS)
            began = time.perf_counter()
            entries["put"].call(key=f"single-{chance.random()}", value=str(place), wait_seconds=PATIENCE_SECONDS)
            seconds.append(time.perf_counter() - began)


def epochs_of(application: ApplicationHandle, first: int = 0) -> float:
    """Median seconds from the opening of an epoch to its commit, of the latest 50 from ``first`` on."""
    found = [each for each in application.epochs.list(50, "committed") if each.epoch >= first]
    return median((each.committed_at - each.started_at).total_seconds() for each in found if each.committed_at)


def _head(application: ApplicationHandle) -> int:
    head = application.get().head
    return head.epoch if head else 0


def cpu_of_all(plane: ControlPlane, server: PostgresqlServer, application: ApplicationHandle) -> dict[str, float]:
    """User and system time of the processes by their role."""
    driver = process_id(str(application.executions.list(1)[0].attempts[-1].process))
    inside = [child for child in children(plane.process.pid) if _is_internal(child)]
    return {
        "control plane": cpu_seconds(plane.process.pid),
        "internal process": sum(map(cpu_seconds, inside)),
        "PostgreSQL": sum(cpu_seconds(each, waited_for=True) for each in children(server.process.pid, itself=True)),
        "driver": cpu_seconds(driver),
        "Spark and its tasks": cpu_seconds_of_tree(driver) - cpu_seconds(driver),
    }


def _is_internal(process: int) -> bool:
    return b"internal_app" in Path(f"/proc/{process}/cmdline").read_bytes()


def _token(plane: ControlPlane) -> str:
    return (plane.home / "admin.token").read_text().strip()
