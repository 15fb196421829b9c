"""One contract of warm pools for all launchers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from epochal.driver.spare import Warmed
from epochal.errors import LauncherUnavailable
from epochal.service.domain.ports import SpareFigures
from epochal.service.runtime.builder.warm import ChildLauncher
from epochal.service.runtime.kept_pods import PodDesk
from epochal.service.runtime.launchers.kubernetes.warm_pods import PodLauncher, WarmPod
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.launchers.spare_process import ProcessLauncher, SpareFiles, SpareKey, SpareProcess
from epochal.service.runtime.warm_pool import (
    PoolTimes,
    WarmLauncher,
    WarmPool,
)
from tests.kit.waiting import eventually

TIMES = PoolTimes(quiet=0, busy=0, pause=0, answer=30)


class Workbench(ABC):
    """A launcher, and what a test does with its workers. ``keys``: two that differ, if the launcher supports
    several."""

    launcher: WarmLauncher[Any, Any]
    keys: tuple[Any, Any]

    @abstractmethod
    def make_ready(self, worker: Any) -> None: ...

    @abstractmethod
    def terminate(self, worker: Any) -> None:
        """Make the worker end unexpectedly."""

    @abstractmethod
    def exists(self, worker: Any) -> bool: ...

    def clean_up(self) -> None:  # noqa: B027 optional
        pass


PROCESS = """
import os, pathlib, socket, sys, time
control = socket.socket(fileno=0)
control.recv(4096)
ready = pathlib.Path(sys.argv[1], str(os.getpid()))
control.settimeout(0.02)
while not ready.exists():
    try:
        if not control.recv(1):
            sys.exit()
    except TimeoutError:
        pass
control.settimeout(None)
control.sendall(b'{"seconds": 1}' + bytes([10]))
control.recv(1)
"""


class Processes(Workbench):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        self.launcher = ProcessLauncher(self._start)
        environment = tuple(os.environ.items())
        self.keys = SpareKey("local", (), environment, None), SpareKey("local[2]", (), environment, None)

    def _start(self, key: SpareKey) -> SpareProcess:
        ours, theirs = socket.socketpair()
        files = SpareFiles.of(self.folder / f"{len(self.started)}.claim")
        files.log.touch()
        with theirs:
            command = [sys.executable, "-S", "-c", PROCESS, str(self.folder)]
            child = subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True)
        self.started.append(child)
        return SpareProcess(key, child, LocalProcess.find(child.pid) or LocalProcess(child.pid, "ended"), ours, files)

    def make_ready(self, worker: SpareProcess) -> None:
        (self.folder / str(worker.process.pid)).touch()

    def terminate(self, worker: SpareProcess) -> None:
        worker.child.kill()
        worker.child.wait()

    def exists(self, worker: SpareProcess) -> bool:
        return worker.child.poll() is None

    def clean_up(self) -> None:
        for child in self.started:
            child.kill()
            child.wait()


class StandInApi:
    """Pods of a cluster, in memory."""

    def __init__(self) -> None:
        self.existing: dict[str, dict[str, Any]] = {}
        self.phase = "Running"

    def create_pod(self, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        name = manifest["metadata"]["name"]
        metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2020-01-01T00:00:00+00:00"}
        self.existing[name] = {"metadata": metadata, "status": {"phase": "Running"}}
        return self.existing[name]

    def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int) -> None:
        self.existing.pop(name, None)
        raise LauncherUnavailable("The answer of the cluster was lost.")

    def pods(self, namespace: str, selector: str) -> tuple[list[dict[str, Any]], str]:
        return list(self.existing.values()), "1"


class NumberedPods(PodLauncher[str]):
    kind = "pod"
    hands_out_unready = False
    number = 0

    def start(self, key: str) -> WarmPod:
        self.number += 1
        name = f"{key}-{self.number}"
        return self.create("team-a", name, {"metadata": {"name": name}}, b"{}")


class Pods(Workbench):
    keys = ("a", "b")

    def __init__(self, folder: Path) -> None:
        self.api: Any = StandInApi()
        self.kept = PodDesk(folder)
        self.launcher: NumberedPods = NumberedPods(self.api, self.kept, 0)

    def make_ready(self, worker: WarmPod) -> None:
        self.kept.report_ready(worker.name)

    def terminate(self, worker: WarmPod) -> None:
        self.api.existing[worker.name]["status"]["phase"] = "Failed"
        self.launcher.sweep("team-a", "", [worker], 60)

    def exists(self, worker: WarmPod) -> bool:
        return worker.name in self.api.existing


class Children(Workbench):
    keys = ("spark", "spark")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

        def get_ready() -> Warmed:
            eventually((folder / str(os.getpid())).exists)
            return Warmed(check=lambda: None, stop=lambda: None)

        self.started: list[Any] = []
        self.launcher = ChildLauncher(self._serve, get_ready, self._close_others)
        start = self.launcher.start

        def recorded(key: str) -> Any:
            child = start(key)
            self.started.append(child)
            return child

        self.launcher.start = recorded  # type: ignore[method-assign]

    def _close_others(self) -> None:
        for child in self.started:
            child.socket.close()

    def _serve(self, descriptor: int) -> NoReturn:
        os._exit(0)

    def make_ready(self, worker: Any) -> None:
        (self.folder / str(worker.process)).touch()

    def terminate(self, worker: Any) -> None:
        os.kill(worker.process, signal.SIGKILL)
        eventually(lambda: not self.exists(worker))

    def exists(self, worker: Any) -> bool:
        try:
            return os.waitpid(worker.process, os.WNOHANG)[0] == 0
        except ChildProcessError:
            return False


@pytest.fixture(params=[Processes, Pods, Children])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workbench]:
    monkeypatch.setattr("epochal.driver.spare.ORPHAN_SECONDS", 0.1)
    folder = tmp_path / "workers"
    folder.mkdir()
    bench: Workbench = request.param(folder)
    yield bench
    bench.clean_up()
    shutil.rmtree(folder, ignore_errors=True)


pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def pool_of(bench: Workbench, places: int = 1, times: PoolTimes = TIMES) -> WarmPool[Any, Any]:
    return WarmPool(bench.launcher, places, lambda: bench.keys[0], times)


def with_ready(bench: Workbench, pool: WarmPool[Any, Any]) -> Any:
    """A worker of the pool that is ready."""
    pool.step()
    [worker] = pool.workers
    bench.make_ready(worker)

    def is_ready() -> bool:
        pool.step()
        return pool.figures.ready == 1

    eventually(is_ready)
    return worker


def accept(worker: Any) -> Any:
    return worker


def test_worker_starts_becomes_ready_and_is_taken_once(bench: Workbench) -> None:
    pool = pool_of(bench)
    worker = with_ready(bench, pool)
    assert pool.take(bench.keys[0], accept) is worker
    assert bench.exists(worker)
    assert pool.take(bench.keys[0], accept) is None
    figures = pool.figures
    assert (figures.limit, figures.ready, figures.warming, figures.taken, figures.cold) == (1, 0, 0, 1, 1)
    assert figures.warmed_seconds is not None
    pool.close()
    assert bench.exists(worker)
    bench.launcher.stop(worker, kill=True)
    eventually(lambda: not bench.exists(worker))


def test_worker_of_another_key_is_not_handed_out_and_is_replaced(bench: Workbench) -> None:
    first, second = bench.keys
    if first == second:
        pytest.skip("all workers of this launcher have one key")
    pool = pool_of(bench)
    worker = with_ready(bench, pool)
    assert pool.take(second, accept) is None
    pool.step()
    eventually(lambda: not bench.exists(worker))
    [replacement] = pool.workers
    bench.make_ready(replacement)
    eventually(lambda: pool.step() is None and pool.figures.ready == 1)
    assert pool.take(second, accept) is replacement
    pool.close()


def test_ended_worker_is_not_handed_out_and_is_replaced(bench: Workbench) -> None:
    pool = pool_of(bench)
    worker = with_ready(bench, pool)
    bench.terminate(worker)
    assert pool.take(bench.keys[0], accept) is None
    assert with_ready(bench, pool) is not worker
    pool.close()


def test_worker_that_ends_before_it_is_ready_is_replaced(bench: Workbench) -> None:
    pool = pool_of(bench)
    pool.step()
    [worker] = pool.workers
    bench.terminate(worker)
    eventually(lambda: pool.step() is None and worker not in pool.workers and len(pool.workers) == 1)
    pool.close()


def test_worker_over_its_maximum_age_is_not_handed_out_and_is_stopped(bench: Workbench) -> None:
    pool = pool_of(bench)
    worker = with_ready(bench, pool)
    pool.times = PoolTimes(quiet=0, busy=0, pause=0, retired=0)
    assert pool.take(bench.keys[0], accept) is None
    pool.step()
    assert worker not in pool.workers
    eventually(lambda: not bench.exists(worker))
    pool.close()


def test_worker_that_is_not_ready_in_time_is_stopped(bench: Workbench) -> None:
    pool = pool_of(bench, times=PoolTimes(quiet=0, busy=0, pause=0, ready=0))
    pool.step()
    [worker] = pool.workers
    pool.step()
    assert worker not in pool.workers
    eventually(lambda: not bench.exists(worker))
    pool.close()


def test_unready_worker_is_handed_out_if_the_launcher_allows_it(bench: Workbench) -> None:
    pool = pool_of(bench)
    pool.step()
    [worker] = pool.workers
    expected = worker if bench.launcher.hands_out_unready else None
    assert pool.take(bench.keys[0], accept) is expected
    bench.launcher.stop(worker, kill=True)
    pool.close()


def test_unresponsive_worker_is_stopped(bench: Workbench) -> None:
    pool = pool_of(bench)
    worker = with_ready(bench, pool)
    assert pool.take(bench.keys[0], lambda worker: None) is None
    eventually(lambda: not bench.exists(worker))
    assert pool.figures.cold == 1
    pool.close()


def test_worker_with_a_failed_claim_belongs_to_the_caller(bench: Workbench) -> None:
    pool = pool_of(bench)
    worker = with_ready(bench, pool)

    def failing(_: Any) -> None:
        raise LauncherUnavailable("unknown")

    with pytest.raises(LauncherUnavailable):
        pool.take(bench.keys[0], failing)
    assert bench.exists(worker) and pool.workers == []
    bench.launcher.stop(worker, kill=True)


def test_pool_that_is_closed_or_does_not_lead_has_no_workers(bench: Workbench) -> None:
    pool = pool_of(bench, places=2)
    pool.step()
    pool.step()
    workers = pool.workers
    assert len(workers) == 2
    pool.leads = lambda: False
    pool.step()
    assert pool.workers == []
    eventually(lambda: not any(map(bench.exists, workers)))
    pool.leads = lambda: True
    pool.step()
    [last] = pool.workers
    pool.close()
    eventually(lambda: not bench.exists(last))
    assert pool.figures == SpareFigures(limit=2)


def test_open_pool_runs_its_steps_in_the_background(bench: Workbench) -> None:
    if isinstance(bench, Children):
        pytest.skip("only a process of one thread forks")
    pool = pool_of(bench)
    pool.open()
    try:
        eventually(lambda: pool.figures.warming == 1)
    finally:
        pool.close()
    assert pool.workers == []
