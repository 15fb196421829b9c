"""Processes of the fork server behave like any other process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from epochal import faults
from epochal.errors import EnvironmentProblem
from epochal.faults import Fault
from epochal.testing.drivers import planned
from epochal.testing.fork_server import ForkedProcess, ForkServer
from tests.service.fault.faulty_application import Drivers

POINT = faults.FaultPoint("X1.here", "in a test")


def main() -> None:
    """The forked program: prints its properties, then performs the requested action."""
    found = {"pid": os.getpid(), "session": os.getsid(0), "variables": dict(os.environ), "folder": os.getcwd()}
    found["descriptors"] = sorted(os.listdir("/proc/self/fd"))
    print(json.dumps(found), flush=True)
    match sys.argv[1]:
        case "wait":
            threading.Event().wait()
        case "point":
            POINT.hit(1)
        case code:
            sys.exit(int(code))


def start(server: ForkServer | None, action: str, log: Path, **environment: str) -> ForkedProcess:
    assert server is not None
    return server.start(__name__, [action], environment, log)


def properties(log: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(log.read_text().splitlines()[0])
    return found


def test_forked_process_has_its_own_session_environment_and_log(without_spark: Drivers, tmp_path: Path) -> None:
    process = start(without_spark.server, "0", tmp_path / "log", HERE="yes")
    assert process.wait(60) == 0
    found = properties(tmp_path / "log")
    assert (found["pid"], found["session"]) == (process.pid, process.pid)
    assert found["pid"] != os.getpid()
    assert found["variables"] == {"HERE": "yes"}
    assert found["folder"] == os.getcwd()
    assert found["descriptors"] == ["0", "1", "2", "3"]  # the last one lists them


@pytest.mark.parametrize("code", [0, 1, 3])
def test_exit_code_of_a_forked_process_is_returned(without_spark: Drivers, tmp_path: Path, code: int) -> None:
    assert start(without_spark.server, str(code), tmp_path / "log").wait(60) == code


def test_exception_of_a_forked_process_is_in_its_log(without_spark: Drivers, tmp_path: Path) -> None:
    assert start(without_spark.server, "nonsense", tmp_path / "log").wait(60) == 1
    assert "ValueError" in (tmp_path / "log").read_text()


def test_forked_process_can_be_killed(without_spark: Drivers, tmp_path: Path) -> None:
    process = start(without_spark.server, "wait", tmp_path / "log")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL
    process.kill()  # has terminated; no other process receives the signal
    assert not Path(f"/proc/{process.pid}").exists()


def test_forked_process_uses_the_faults_of_its_environment(without_spark: Drivers, tmp_path: Path) -> None:
    environment = planned([Fault(POINT.name, "kill", epoch=1)])
    assert start(without_spark.server, "point", tmp_path / "log", **environment).wait(60) == -signal.SIGKILL
    assert start(without_spark.server, "point", tmp_path / "log").wait(60) == 0


def test_forked_process_survives_its_server(tmp_path: Path) -> None:
    with ForkServer([__name__]) as server:
        process = start(server, "wait", tmp_path / "log")
    assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_fork_server_reports_failed_imports() -> None:
    with pytest.raises(EnvironmentProblem, match="fork server ended"):
        ForkServer(["no.such.module"])
