"""Supervision of real processes: scripted drivers are started, lost, killed, stopped, and adopted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from epochal.service.app import create_app
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import SupervisionSettings
from epochal.service.runtime.launchers.base import ProcessReference
from epochal.service.runtime.launchers.local import LocalLauncher
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.supervision.supervisor import ThreadedSupervisor
from tests.kit.waiting import eventually
from tests.service.conftest import StandInBuilder, http_client, serving_app

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("scripted_driver.py")
QUICK = SupervisionSettings(lease_seconds=60, start_seconds=60, stop_seconds=60, round_seconds=0.15, sweep_seconds=0.3)
RESTART = {"max_restarts": 3, "window_seconds": 600, "backoff_seconds": 0.1, "backoff_limit_seconds": 0.5}


@contextmanager
def control_plane(settings: Settings, supervision: SupervisionSettings = QUICK) -> Iterator[Supervised]:
    """A control plane that starts scripted drivers. Drivers are left running at the end of the block."""
    launcher = LocalLauncher(settings.logs_directory, (sys.executable, str(SCRIPT)))
    app = create_app(
        settings,
        lambda *_: StandInBuilder(),
        lambda _settings, _user, executions, leadership: ThreadedSupervisor(
            settings, executions, launcher, leadership, supervision
        ),
    )
    with (
        serving_app(app, settings) as (_, token),
        http_client(settings, token) as client,
    ):
        yield Supervised(client, launcher)


@dataclass
class Supervised:
    client: httpx.Client
    launcher: LocalLauncher

    def submit(self, act: str, restart: dict[str, Any] = RESTART, **parameters: Any) -> None:
        code = b'# {"sinks": {}}'
        artifact = self.client.post("/v1/artifacts", params={"filename": "a.py"}, content=code).json()["sha256"]
        body = {"name": "flights", "artifact": artifact, "parameters": {"act": act, **parameters}}
        answer = self.client.post("/v1/applications", json=body | {"configuration": {"restart": restart}})
        assert answer.status_code == 201, answer.text

    def get(self, path: str = "") -> Any:
        answer = self.client.get(f"/v1/applications/flights{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    @property
    def state(self) -> str:
        return str(self.get()["state"])

    @property
    def execution(self) -> Any:
        return self.get("/executions")["items"][0]

    @property
    def attempts(self) -> list[Any]:
        return list(self.execution["attempts"])

    @property
    def process(self) -> LocalProcess:
        return LocalProcess.parse(ProcessReference.parse(self.attempts[-1]["process"]).identity)

    def committed(self) -> int:
        head = self.get()["head"]
        return int(head["epoch"]) if head else 0

    def wait_for_epochs(self) -> None:
        """Wait until further epochs commit."""
        before = self.committed()
        eventually(lambda: self.committed() > before + 1)

    def operate(self, verb: str, **body: Any) -> str:
        answer = self.client.post(f"/v1/applications/flights/{verb}", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def outcome(self, operation: str) -> Any:
        def done() -> bool:
            return bool(self.client.get(f"/v1/operations/{operation}").json()["state"] != "running")

        eventually(done)
        return self.client.get(f"/v1/operations/{operation}").json()


@pytest.fixture
def settings(settings: Settings) -> Iterator[Settings]:
    yield settings
    for process in _drivers_of(settings):
        process.signal_group(signal.SIGKILL)


def _drivers_of(settings: Settings) -> list[LocalProcess]:
    """Drivers whose working directory is below the data directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if str(settings.work_directory) in os.readlink(entry / "cwd"):
                    found.append(LocalProcess.find(int(entry.name)))
    return [process for process in found if process is not None]


def test_application_stops_with_a_savepoint_and_starts_from_it(settings: Settings) -> None:
    with control_plane(settings) as plane:
        plane.submit("run")
        plane.wait_for_epochs()
        assert plane.state == "running"
        driver = plane.process
        stopped = plane.outcome(plane.operate("stop", savepoint="noon"))
        assert stopped["state"] == "succeeded" and stopped["result"]["savepoint"] == "noon"
        assert plane.state == "stopped"
        eventually(lambda: not driver.exists())
        assert [attempt["state"] for attempt in plane.attempts] == ["ended"]

        started = plane.outcome(plane.operate("start"))
        assert started["state"] == "succeeded"
        plane.wait_for_epochs()
        assert plane.committed() > stopped["result"]["epoch"]
        eventually(
            lambda: len(list(settings.work_directory.iterdir())) == 1
        )  # the directory of the first execution was deleted


def test_killed_driver_is_followed_by_the_next_attempt(settings: Settings) -> None:
    with control_plane(settings) as plane:
        plane.submit("run")
        plane.wait_for_epochs()
        os.kill(plane.process.pid, signal.SIGKILL)
        eventually(lambda: len(plane.attempts) == 2)
        plane.wait_for_epochs()
        first, second = plane.attempts
        assert (first["state"], second["state"]) == ("lost", "running")
        assert "SIGKILL" in first["failure"]["message"]
        epochs = plane.get("/epochs?limit=500")["items"]
        committed = [item for item in epochs if item["state"] == "committed"]
        parents = {(item["parent"] or {"epoch": 0})["epoch"] for item in committed}
        assert len(parents) == len(committed), "two epochs have one parent"


@pytest.mark.alternating(2)
def test_restarted_control_plane_adopts_the_driver(settings: Settings) -> None:
    with control_plane(settings) as plane:
        plane.submit("run")
        plane.wait_for_epochs()
        driver, before = plane.process, plane.committed()
    assert driver.exists()
    with control_plane(settings) as plane:
        eventually(lambda: plane.committed() > before + 1)
        assert plane.process == driver
        assert [attempt["state"] for attempt in plane.attempts] == ["running"]
        # The driver stays adopted: its end is noticed, although it is not a child of this launcher.
        driver.signal_group(signal.SIGKILL)
        eventually(lambda: len(plane.attempts) == 2)
        plane.wait_for_epochs()


@pytest.mark.long  # the end of an adopted driver is tested above
@pytest.mark.alternating(2)
def test_driver_that_died_during_an_outage_is_detected(settings: Settings) -> None:
    with control_plane(settings) as plane:
        plane.submit("run")
        plane.wait_for_epochs()
        driver = plane.process
    driver.signal_group(signal.SIGKILL)
    with control_plane(settings) as plane:
        eventually(lambda: [attempt["state"] for attempt in plane.attempts] == ["lost", "running"])
        plane.wait_for_epochs()


@pytest.mark.alternating(2)
def test_zombie_driver_is_fenced_by_its_successor(settings: Settings) -> None:
    """On a slow machine the successor may be lost as well, and be replaced itself."""
    no_kill = QUICK.model_copy(update={"kill_lost_drivers": False, "lease_seconds": 3})
    with control_plane(settings, no_kill) as plane:
        plane.submit("run")
        plane.wait_for_epochs()
        zombie = plane.process
        os.kill(zombie.pid, signal.SIGSTOP)
        eventually(lambda: len(plane.attempts) >= 2)
        plane.wait_for_epochs()
        assert plane.attempts[0]["state"] == "lost" and "No heartbeat" in plane.attempts[0]["failure"]["message"]
        taken_over = plane.committed()
        os.kill(zombie.pid, signal.SIGCONT)
        # Of two concurrent callers, one gets an unknown exit code at first.
        eventually(lambda: plane.launcher.exit_code(ProcessReference(identity=str(zombie))) == 3)
        plane.wait_for_epochs()
        later = [item for item in plane.get("/epochs?limit=500")["items"] if item["epoch"] > taken_over]
        assert later and min(item["attempt"] for item in later) >= 2


@pytest.mark.long  # lost but not killed: above; killed: below; the decision: test_supervision_decisions.py
@pytest.mark.alternating(2)
def test_lost_driver_is_killed(settings: Settings) -> None:
    with control_plane(settings, QUICK.model_copy(update={"lease_seconds": 1.5})) as plane:
        plane.submit("run")
        plane.wait_for_epochs()
        lost = plane.process
        os.kill(lost.pid, signal.SIGSTOP)
        eventually(lambda: not lost.exists())
        plane.wait_for_epochs()


@pytest.mark.alternating(2)
def test_unreported_crash_is_explained_by_exit_code_and_log(settings: Settings) -> None:
    with control_plane(settings) as plane:
        plane.submit("crash", RESTART | {"max_restarts": 1})
        eventually(lambda: plane.state == "failed")
        # The first attempt, and the restarts that the strategy allows.
        assert [attempt["state"] for attempt in plane.attempts] == ["failed"] * 2
        failure = plane.get()["failure"]
        assert "exit code 7" in failure["message"] and "about to crash" in failure["message"]
        assert plane.client.get("/v1/applications/flights/logs").text == "about to crash\n"


@pytest.mark.long  # the decision: test_supervision_decisions.py; the reported failure: below
def test_permanent_failure_is_not_retried(settings: Settings) -> None:
    failure = {"type": "invalid-pipeline", "message": "no column delay"}
    with control_plane(settings) as plane:
        plane.submit("fail", failure=failure)
        eventually(lambda: plane.state == "failed")
        assert len(plane.attempts) == 1
        assert plane.get()["failure"]["message"] == "no column delay"


@pytest.mark.alternating(2)
def test_temporary_failure_is_retried_and_then_reported(settings: Settings) -> None:
    failure = {"type": "source-error", "message": "no folder", "traceback": "Traceback: the author's own"}
    with control_plane(settings) as plane:
        plane.submit("fail", RESTART | {"max_restarts": 1}, failure=failure)
        eventually(lambda: plane.state == "failed")
        assert [attempt["failure"]["message"] for attempt in plane.attempts] == ["no folder"] * 2
        assert plane.get()["failure"]["traceback"] == "Traceback: the author's own"


@pytest.mark.alternating(2)
def test_driver_that_does_not_stop_is_killed(settings: Settings) -> None:
    with control_plane(settings, QUICK.model_copy(update={"stop_seconds": 1})) as plane:
        plane.submit("ignore-stop")
        plane.wait_for_epochs()
        driver = plane.process
        operation = plane.operate("stop")
        eventually(lambda: plane.state in ("stopped", "failed"))
        assert plane.outcome(operation)["state"] != "running"
        eventually(lambda: not driver.exists())
        assert len(plane.attempts) == 1


def test_environment_that_cannot_run_drivers_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(settings.data / "nothing"))
    with control_plane(settings) as plane:
        plane.submit("run")
        eventually(lambda: plane.state == "failed")
        assert len(plane.attempts) == 1
        assert "JAVA_HOME" in plane.get()["failure"]["message"]


@pytest.mark.alternating(2)
def test_control_plane_stands_by_while_another_holds_the_data_folder(settings: Settings) -> None:
    holding = f"""
from pathlib import Path
from epochal.service.runtime.leadership import FolderLock
print(FolderLock(Path({str(settings.data / "supervisor.lock")!r})).acquire(), flush=True)
input()
"""
    other = subprocess.Popen([sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "True\n"
    with control_plane(settings) as plane:
        plane.submit("run")
        time.sleep(5 * QUICK.round_seconds)
        assert plane.attempts == []
        other.communicate("end")
        plane.wait_for_epochs()


@pytest.mark.long  # rotation, reading and following: test_supervision_launcher.py
def test_driver_logs_are_rotated_and_read_across_rotations(settings: Settings) -> None:
    with control_plane(settings.model_copy(update={"log_size": 12 / (1 << 20)})) as plane:
        # Log sizes are checked at intervals, also before the next attempt starts.
        plane.submit("crash", RESTART | {"max_restarts": 1, "backoff_seconds": 2.0, "backoff_limit_seconds": 2.0})
        eventually(lambda: bool(list(settings.logs_directory.glob("flights/*.log.1"))))
        eventually(lambda: plane.state == "failed")
        assert "about to crash" in plane.client.get("/v1/applications/flights/logs").text
        assert "about to crash" in plane.get()["failure"]["message"]
