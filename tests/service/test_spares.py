"""Spare drivers, without Spark: which attempt takes one, when a cold start happens instead, and kills at every step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import epochal.driver
import epochal.service.runtime.launchers
from epochal.contracts.configuration import Configuration
from epochal.driver.orders import ArtifactOrder, DriverOrders
from epochal.faults import ENVIRONMENT, SWITCH, Fault
from epochal.service.domain.executions import DriverName
from epochal.service.domain.settings import Settings
from epochal.service.runtime.launchers.base import ProcessReference
from epochal.service.runtime.launchers.local import LocalLauncher
from epochal.service.runtime.launchers.processes import LocalProcess, session_leaders
from epochal.service.runtime.logs.files import last_lines, log_path
from epochal.service.runtime.warm_pool import PoolTimes
from epochal.testing.drivers import encoded
from tests.kit.waiting import eventually
from tests.service.fault.points import all_declared
from tests.service.test_supervision import control_plane

NO_PAUSES = PoolTimes(quiet=0, busy=0, answer=30)
NAME = DriverName("e1", 1)
REPORTING_DRIVER = """
import json, os, sys, time
sys.path[:0] = {path!r}
from epochal.driver import spare
from epochal.driver.orders import SPARE, DriverOrders
from tests.service.scripted_driver import received_orders
orders = received_orders()
place = os.environ["EPOCHAL_SECRET_PLACE"]
print(json.dumps([orders.token, os.getcwd(), place, os.getsid(0) == os.getpid()]), flush=True)
time.sleep(0.1 if orders.parameters.get("ends") else 600)
"""
ROOT = str(Path(__file__).parents[2])
COMMAND = (sys.executable, "-c", REPORTING_DRIVER.format(path=[ROOT]))
CONTROL_PLANE = """
import sys; sys.path[:0] = {path!r}
from pathlib import Path
from epochal.driver.orders import DriverOrders
from tests.service.test_spares import launcher_of, with_spare
launcher = with_spare(launcher_of(Path(sys.argv[1])))
print(launcher._spares.workers[0].process, flush=True)
sys.stdin.readline()
print(launcher.launch(DriverOrders.model_validate_json(sys.stdin.readline())), flush=True)
sys.stdin.readline()
"""


def orders(tmp_path: Path, *, ends: bool = False, attempt: int = 1, **spark: str) -> DriverOrders:
    return DriverOrders(
        control_planes=("http://127.0.0.1:1",),
        token="secret-token",
        execution=NAME.execution,
        attempt=attempt,
        application="flights",
        artifact=ArtifactOrder(sha256="0" * 64, filename="pipeline.py"),
        parameters={"ends": ends},
        configuration=Configuration(spark={f"spark.{name}": value for name, value in spark.items()}),
        store=str(tmp_path / "store"),
        work_directory=tmp_path / "work",
    )


def launcher_of(tmp_path: Path, number: int = 1, times: PoolTimes = NO_PAUSES) -> LocalLauncher:
    (tmp_path / "spares").mkdir(exist_ok=True)
    launcher = LocalLauncher(tmp_path / "logs", COMMAND)
    launcher.keep_spares(number, tmp_path / "spares", times)
    return launcher


def pool_round(launcher: LocalLauncher) -> int:
    """Run one round of the pool, as its thread does; return the number of ready spares."""
    assert launcher._spares is not None
    launcher._spares.step()
    return launcher.spares.ready


def with_spare(launcher: LocalLauncher) -> LocalLauncher:
    eventually(lambda: pool_round(launcher) == 1)
    return launcher


def only_spare(launcher: LocalLauncher) -> LocalProcess:
    """The process as the launcher has recorded it: a spare that has just started or has ended cannot be found by its
    command."""
    assert launcher._spares is not None
    [spare] = launcher._spares.workers
    return spare.process


NO_AUTOGROUPS = "the kernel has no autogroups"


def niceness(process: LocalProcess) -> str:
    """Nice value of the process's session relative to other sessions."""
    try:
        return (Path(f"/proc/{process.pid}/autogroup").read_text().split() or [NO_AUTOGROUPS])[-1]
    except OSError:
        return NO_AUTOGROUPS


def processes(tmp_path: Path) -> list[LocalProcess]:
    """Spares and drivers of this test: processes started by launchers of its folder."""
    matching = [process for process, arguments in session_leaders(os.geteuid()) if arguments[1:3] == COMMAND[1:3]]
    return [process for process in matching if str(tmp_path) in _folder(process)]


def _folder(process: LocalProcess) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/cwd")
    except OSError:
        return ""


def kill(process: LocalProcess) -> None:
    process.signal_group(signal.SIGKILL)
    eventually(lambda: not process.exists())


@pytest.fixture(autouse=True)
def _kill_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EPOCHAL_SECRET_PLACE", "of drivers")
    yield
    for process in processes(tmp_path):
        process.signal_group(signal.SIGKILL)
    eventually(lambda: not processes(tmp_path))


def test_taken_spare_equals_a_driver_that_was_started_cold(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    [spare] = processes(tmp_path)
    assert niceness(spare) in {"0", NO_AUTOGROUPS}
    assert launcher.drivers() == {}
    assert launcher.spares.bytes > 0

    reference = launcher.launch(orders(tmp_path, ends=True))
    assert reference == ProcessReference(identity=str(spare), machine=reference.machine)
    eventually(lambda: not launcher.alive(reference))
    assert launcher.exit_code(reference) == 0
    log = last_lines(log_path(tmp_path / "logs", "flights", "e1", 1), 9)
    assert log == f'["secret-token", "{tmp_path / "work"}", "of drivers", true]'


def test_taken_spare_survives_its_control_plane_and_is_found_by_name(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    reference = launcher.launch(orders(tmp_path))
    launcher.close()
    successor = launcher_of(tmp_path)
    assert successor.drivers() == {NAME: reference}
    assert successor.launch(orders(tmp_path)) == reference

    with_spare(successor)  # the pool removes leftovers of earlier control planes
    assert successor.alive(reference)
    other = orders(tmp_path).model_copy(update={"execution": "e2", "work_directory": tmp_path / "work2"})
    assert successor.launch(other) != reference
    assert set(successor.drivers()) == {NAME, DriverName("e2", 1)}
    successor.terminate(reference, kill=True)
    eventually(lambda: set(successor.drivers()) == {DriverName("e2", 1)})


def test_spare_with_other_spark_settings_is_replaced(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    [spare] = processes(tmp_path)
    reference = launcher.launch(orders(tmp_path, scenario="another"))
    assert reference.identity != str(spare)
    assert (launcher.spares.taken, launcher.drivers()) == (0, {NAME: reference})
    eventually(lambda: pool_round(launcher) == 1 and not spare.exists())
    kill(LocalProcess.parse(reference.identity))

    [spare] = processes(tmp_path)
    assert launcher.launch(orders(tmp_path, attempt=2, scenario="another")).identity == str(spare)


def test_no_spares_are_started_for_clusters(tmp_path: Path) -> None:
    launcher = launcher_of(tmp_path)
    cluster_orders = orders(tmp_path).model_copy(update={"configuration": Configuration(master="spark://127.0.0.1:1")})
    launcher.launch(cluster_orders)
    eventually(lambda: pool_round(launcher) == 1)  # a spare with the usual settings
    assert launcher.spares.taken == launcher.spares.cold == 0


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_unresponsive_spare_is_replaced_and_the_driver_starts_cold(tmp_path: Path, number: signal.Signals) -> None:
    launcher = with_spare(launcher_of(tmp_path, times=PoolTimes(quiet=0, busy=0, answer=0.5)))
    [spare] = processes(tmp_path)
    os.kill(spare.pid, number)
    reference = launcher.launch(orders(tmp_path))
    assert reference.identity != str(spare)
    assert not spare.exists()
    with_spare(launcher)
    assert (launcher.spares.taken, launcher.spares.cold) == (0, 1)


def test_partly_started_spare_is_preferred_to_a_cold_start(tmp_path: Path) -> None:
    launcher = launcher_of(tmp_path)
    first = launcher.launch(orders(tmp_path, scenario="never ready"))
    kill(LocalProcess.parse(first.identity))
    eventually(lambda: pool_round(launcher) == 0 and launcher.spares.warming == 1)
    spare = only_spare(launcher)
    assert niceness(spare) in {"10", NO_AUTOGROUPS}  # low priority until an attempt takes it
    assert launcher.launch(orders(tmp_path, attempt=2, scenario="never ready")).identity == str(spare)
    assert niceness(spare) in {"0", NO_AUTOGROUPS}
    eventually(lambda: "secret-token" in last_lines(log_path(tmp_path / "logs", "flights", "e1", 2), 9))


def test_spare_that_ends_early_is_restarted_after_a_pause(tmp_path: Path) -> None:
    launcher = launcher_of(tmp_path, times=PoolTimes(quiet=0, busy=0, pause=3600))
    kill(LocalProcess.parse(launcher.launch(orders(tmp_path, scenario="ends")).identity))
    eventually(lambda: pool_round(launcher) == 0 and launcher.spares.warming == 1)
    spare = only_spare(launcher)
    eventually(lambda: not spare.exists())
    pool_round(launcher)
    pool_round(launcher)
    assert processes(tmp_path) == []


def test_old_spare_is_retired_and_replaced(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    [spare] = processes(tmp_path)
    assert launcher._spares is not None
    launcher._spares.times = PoolTimes(quiet=0, busy=0, retired=0)
    eventually(lambda: pool_round(launcher) == 0 and not spare.exists())


def test_first_spare_starts_immediately_but_not_during_a_driver_start(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path, times=PoolTimes(quiet=3600, busy=7200, answer=30)))
    launcher.launch(orders(tmp_path))
    assert pool_round(launcher) == launcher.spares.warming == 0


POINTS = {"W1.offered": 0, "W2.claimed": 0, "W3.handed-over": 1}
"""Points at which the control plane is killed, and the number of drivers afterwards."""
DRIVER_POINTS = ("W4.started", "W5.announced")


def test_every_fault_point_of_taking_a_spare_is_tested() -> None:
    names = all_declared(epochal.driver, epochal.service.runtime.launchers)
    assert {name for name in names if name.startswith("W")} == {*POINTS, *DRIVER_POINTS}


@pytest.mark.parametrize("point", POINTS)
def test_killed_control_plane_ends_spares_without_orders(tmp_path: Path, point: str) -> None:
    faults = {ENVIRONMENT: encoded([Fault(point=point, action="kill")]), SWITCH: "1"}
    plane = subprocess.Popen(
        [sys.executable, "-c", CONTROL_PLANE.format(path=[ROOT]), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **faults},
    )
    spare = plane.communicate(f"\n{orders(tmp_path).model_dump_json()}\n", timeout=60)[0].strip()
    assert plane.returncode == -signal.SIGKILL

    def remaining() -> list[LocalProcess]:
        return [process for process in processes(tmp_path) if str(process) == spare]

    eventually(lambda: len(remaining()) == len(processes(tmp_path)) == POINTS[point])
    successor = launcher_of(tmp_path)
    recovered = successor.drivers()
    assert len(recovered) == POINTS[point]
    reference = successor.launch(orders(tmp_path))
    assert successor.drivers() == {NAME: reference}
    assert recovered in ({}, {NAME: reference})
    assert len(processes(tmp_path)) == 1


@pytest.mark.parametrize("point", [pytest.param(DRIVER_POINTS[0], marks=pytest.mark.long), DRIVER_POINTS[1]])
def test_driver_killed_after_it_was_taken_is_replaced(
    tmp_path: Path, point: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(point=point, action="kill", once=str(tmp_path / "fired"))
    monkeypatch.setenv(ENVIRONMENT, encoded([fault]))
    monkeypatch.setenv(SWITCH, "1")
    with control_plane(settings) as plane:
        plane.launcher.keep_spares(1, settings.spares_directory, NO_PAUSES)
        with_spare(plane.launcher)
        plane.submit("run")
        plane.wait_for_epochs()
        assert (tmp_path / "fired").exists()
        assert [attempt["state"] for attempt in plane.attempts] == ["lost", "running"]
        pool_round(plane.launcher)
        assert plane.launcher.spares.taken >= 1
        plane.outcome(plane.operate("stop"))
        plane.launcher.close()
