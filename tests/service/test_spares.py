"""Spare drivers, without Spark: whose driver one becomes and when none does; what ends it, whoever is killed when."""

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

AT_ONCE = PoolTimes(quiet=0, busy=0, answer=30)
NAME = DriverName("e1", 1)
SAYS_WHAT_IT_IS = """
import json, os, sys, time
sys.path[:0] = {path!r}
from epochal.driver import spare
from epochal.driver.orders import SPARE, DriverOrders
from tests.service.scripted_driver import orders_given
orders = orders_given()
place = os.environ["EPOCHAL_SECRET_PLACE"]
print(json.dumps([orders.token, os.getcwd(), place, os.getsid(0) == os.getpid()]), flush=True)
time.sleep(0.1 if orders.parameters.get("ends") else 600)
"""
ROOT = str(Path(__file__).parents[2])
COMMAND = (sys.executable, "-c", SAYS_WHAT_IT_IS.format(path=[ROOT]))
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


def launcher_of(tmp_path: Path, number: int = 1, times: PoolTimes = AT_ONCE) -> LocalLauncher:
    (tmp_path / "spares").mkdir(exist_ok=True)
    launcher = LocalLauncher(tmp_path / "logs", COMMAND)
    launcher.keep_spares(number, tmp_path / "spares", times)
    return launcher


def looks(launcher: LocalLauncher) -> int:
    """A round of its pool, as its thread would make it; how many are ready."""
    assert launcher._spares is not None
    launcher._spares.step()
    return launcher.spares.ready


def with_spare(launcher: LocalLauncher) -> LocalLauncher:
    eventually(lambda: looks(launcher) == 1)
    return launcher


def only_spare(launcher: LocalLauncher) -> LocalProcess:
    """As the launcher knows it: one that has just been started has no command yet, and one that ended none any more."""
    assert launcher._spares is not None
    [spare] = launcher._spares.workers
    return spare.process


UNKNOWN = "the kernel has no groups of sessions"


def niceness(process: LocalProcess) -> str:
    """Of its session, beside others."""
    try:
        return (Path(f"/proc/{process.pid}/autogroup").read_text().split() or [UNKNOWN])[-1]
    except OSError:
        return UNKNOWN


def processes(tmp_path: Path) -> list[LocalProcess]:
    """Spares and drivers of this test: all that this folder's launchers have started."""
    mine = [process for process, arguments in session_leaders(os.geteuid()) if arguments[1:3] == COMMAND[1:3]]
    return [process for process in mine if str(tmp_path) in _folder(process)]


def _folder(process: LocalProcess) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/cwd")
    except OSError:
        return ""


def kill(process: LocalProcess) -> None:
    process.signal_group(signal.SIGKILL)
    eventually(lambda: not process.exists())


@pytest.fixture(autouse=True)
def _nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EPOCHAL_SECRET_PLACE", "of drivers")
    yield
    for process in processes(tmp_path):
        process.signal_group(signal.SIGKILL)
    eventually(lambda: not processes(tmp_path))


def test_a_spare_becomes_what_a_driver_that_is_started_would_be(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    [spare] = processes(tmp_path)
    assert niceness(spare) in {"0", UNKNOWN}
    assert launcher.drivers() == {}
    assert launcher.spares.bytes > 0

    reference = launcher.launch(orders(tmp_path, ends=True))
    assert reference == ProcessReference(identity=str(spare), machine=reference.machine)
    eventually(lambda: not launcher.alive(reference))
    assert launcher.exit_code(reference) == 0
    log = last_lines(log_path(tmp_path / "logs", "flights", "e1", 1), 9)
    assert log == f'["secret-token", "{tmp_path / "work"}", "of drivers", true]'


def test_it_is_found_by_its_name_outlives_its_control_plane_and_is_nobody_elses(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    reference = launcher.launch(orders(tmp_path))
    launcher.close()
    successor = launcher_of(tmp_path)
    assert successor.drivers() == {NAME: reference}
    assert successor.launch(orders(tmp_path)) == reference

    with_spare(successor)  # which clears up what earlier ones have left
    assert successor.alive(reference)
    other = orders(tmp_path).model_copy(update={"execution": "e2", "work_directory": tmp_path / "work2"})
    assert successor.launch(other) != reference
    assert set(successor.drivers()) == {NAME, DriverName("e2", 1)}
    successor.terminate(reference, kill=True)
    eventually(lambda: set(successor.drivers()) == {DriverName("e2", 1)})


def test_what_spark_was_not_started_with_starts_anew_and_is_what_is_kept_from_then_on(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    [spare] = processes(tmp_path)
    reference = launcher.launch(orders(tmp_path, scenario="another"))
    assert reference.identity != str(spare)
    assert (launcher.spares.taken, launcher.drivers()) == (0, {NAME: reference})
    eventually(lambda: looks(launcher) == 1 and not spare.exists())
    kill(LocalProcess.parse(reference.identity))

    [spare] = processes(tmp_path)
    assert launcher.launch(orders(tmp_path, attempt=2, scenario="another")).identity == str(spare)


def test_on_a_cluster_no_spare_holds_executors(tmp_path: Path) -> None:
    launcher = launcher_of(tmp_path)
    there = orders(tmp_path).model_copy(update={"configuration": Configuration(master="spark://127.0.0.1:1")})
    launcher.launch(there)
    eventually(lambda: looks(launcher) == 1)  # of what is usual
    assert launcher.spares.taken == launcher.spares.cold == 0


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_one_that_does_not_answer_is_replaced_and_the_driver_starts_without(
    tmp_path: Path, number: signal.Signals
) -> None:
    launcher = with_spare(launcher_of(tmp_path, times=PoolTimes(quiet=0, busy=0, answer=0.5)))
    [spare] = processes(tmp_path)
    os.kill(spare.pid, number)
    reference = launcher.launch(orders(tmp_path))
    assert reference.identity != str(spare)
    assert not spare.exists()
    with_spare(launcher)
    assert (launcher.spares.taken, launcher.spares.cold) == (0, 1)


def test_one_that_is_not_ready_yet_is_further_than_none(tmp_path: Path) -> None:
    launcher = launcher_of(tmp_path)
    first = launcher.launch(orders(tmp_path, scenario="never ready"))
    kill(LocalProcess.parse(first.identity))
    eventually(lambda: looks(launcher) == 0 and launcher.spares.warming == 1)
    spare = only_spare(launcher)
    assert niceness(spare) in {"10", UNKNOWN}  # others go first while nobody waits for it
    assert launcher.launch(orders(tmp_path, attempt=2, scenario="never ready")).identity == str(spare)
    assert niceness(spare) in {"0", UNKNOWN}
    eventually(lambda: "secret-token" in last_lines(log_path(tmp_path / "logs", "flights", "e1", 2), 9))


def test_one_that_ends_by_itself_is_not_started_again_at_once(tmp_path: Path) -> None:
    launcher = launcher_of(tmp_path, times=PoolTimes(quiet=0, busy=0, pause=3600))
    kill(LocalProcess.parse(launcher.launch(orders(tmp_path, scenario="ends")).identity))
    eventually(lambda: looks(launcher) == 0 and launcher.spares.warming == 1)
    spare = only_spare(launcher)
    eventually(lambda: not spare.exists())
    looks(launcher)
    looks(launcher)
    assert processes(tmp_path) == []


def test_an_old_one_ends_and_another_takes_its_place(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path))
    [spare] = processes(tmp_path)
    assert launcher._spares is not None
    launcher._spares.times = PoolTimes(quiet=0, busy=0, retired=0)
    eventually(lambda: looks(launcher) == 0 and not spare.exists())


def test_the_first_is_begun_at_once_and_none_while_a_driver_is_being_started(tmp_path: Path) -> None:
    launcher = with_spare(launcher_of(tmp_path, times=PoolTimes(quiet=3600, busy=7200, answer=30)))
    launcher.launch(orders(tmp_path))
    assert looks(launcher) == launcher.spares.warming == 0


POINTS = {"W1.offered": 0, "W2.claimed": 0, "W3.handed-over": 1}
"""Where a control plane is killed, and how many drivers there are after that."""
OF_DRIVERS = ("W4.started", "W5.announced")


def test_each_step_of_being_taken_is_a_point_at_which_something_is_killed() -> None:
    names = all_declared(epochal.driver, epochal.service.runtime.launchers)
    assert {name for name in names if name.startswith("W")} == {*POINTS, *OF_DRIVERS}


@pytest.mark.parametrize("point", POINTS)
def test_a_control_plane_that_is_killed_takes_along_what_has_no_orders(tmp_path: Path, point: str) -> None:
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

    def left() -> list[LocalProcess]:
        return [process for process in processes(tmp_path) if str(process) == spare]

    eventually(lambda: len(left()) == len(processes(tmp_path)) == POINTS[point])
    successor = launcher_of(tmp_path)
    there = successor.drivers()
    assert len(there) == POINTS[point]
    reference = successor.launch(orders(tmp_path))
    assert successor.drivers() == {NAME: reference}
    assert there in ({}, {NAME: reference})
    assert len(processes(tmp_path)) == 1


@pytest.mark.parametrize("point", [pytest.param(OF_DRIVERS[0], marks=pytest.mark.long), OF_DRIVERS[1]])
def test_a_driver_that_is_killed_right_after_it_was_taken_is_replaced_by_the_next_attempt(
    tmp_path: Path, point: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(point=point, action="kill", once=str(tmp_path / "fired"))
    monkeypatch.setenv(ENVIRONMENT, encoded([fault]))
    monkeypatch.setenv(SWITCH, "1")
    with control_plane(settings) as plane:
        plane.launcher.keep_spares(1, settings.spares_directory, AT_ONCE)
        with_spare(plane.launcher)
        plane.submit("run")
        plane.moves_on()
        assert (tmp_path / "fired").exists()
        assert [attempt["state"] for attempt in plane.attempts] == ["lost", "running"]
        looks(plane.launcher)
        assert plane.launcher.spares.taken >= 1
        plane.outcome(plane.operate("stop"))
        plane.launcher.close()
