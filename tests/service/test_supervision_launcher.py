"""The local launcher with real processes: their environment, signals, and processes that survive others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal import faults
from epochal.contracts.configuration import Configuration
from epochal.driver.orders import ArtifactOrder, DriverOrders
from epochal.errors import EnvironmentProblem
from epochal.faults import Fault
from epochal.service.domain.executions import DriverName
from epochal.service.runtime.launchers.base import ProcessReference
from epochal.service.runtime.launchers.java import check_java
from epochal.service.runtime.launchers.local import LocalLauncher, driver_environment
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.logs.files import LogFollower, last_lines, log_path, tail, tail_and_follow
from epochal.service.runtime.logs.rotation import rotate, rotated
from epochal.service.runtime.machine import this_machine
from epochal.testing.drivers import encoded
from tests.kit.waiting import eventually


def orders(tmp_path: Path) -> DriverOrders:
    return DriverOrders(
        control_planes=("http://127.0.0.1:1",),
        token="secret-token",
        execution="e1",
        attempt=1,
        application="flights",
        artifact=ArtifactOrder(sha256="0" * 64, filename="pipeline.py"),
        store=str(tmp_path / "store"),
        work_directory=tmp_path / "work",
    )


class Drivers:
    """Launches scripts in place of drivers, and kills the remaining ones."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path
        self._launched: list[tuple[LocalLauncher, ProcessReference]] = []
        self.log = log_path(tmp_path / "logs", "flights", "e1", 1)

    def launch(self, script: str, store: str = "") -> tuple[LocalLauncher, ProcessReference]:
        launcher = LocalLauncher(self._tmp_path / "logs", (sys.executable, "-c", script), store=store)
        reference = launcher.launch(orders(self._tmp_path))
        self._launched.append((launcher, reference))
        return launcher, reference

    def end(self) -> None:
        for launcher, reference in self._launched:
            launcher.terminate(reference, kill=True)
            eventually(lambda launcher=launcher, reference=reference: not launcher.alive(reference), 30)  # type: ignore[misc]


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(tmp_path)
    yield made
    made.end()


SLEEP = "import time; time.sleep(60)"


def test_driver_reads_orders_from_standard_input_and_writes_its_log(drivers: Drivers) -> None:
    launcher, reference = drivers.launch(
        "import sys, json; orders = json.load(sys.stdin)\n"
        "print(orders['token'], orders['attempt']); print('to stderr', file=sys.stderr)"
    )
    eventually(lambda: not launcher.alive(reference), 30)
    assert launcher.exit_code(reference) == 0
    assert sorted(last_lines(drivers.log, 10).splitlines()) == ["secret-token 1", "to stderr"]


def test_driver_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    seen = driver_environment(os.environ, "default")
    assert "secret" not in seen.values()
    assert seen["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert seen["PYSPARK_PYTHON"] == sys.executable
    assert seen["PATH"] == os.environ["PATH"]


STORE_VARIABLES = """
import os
print(sorted(f"{name}={value}" for name, value in os.environ.items() if name.endswith(("_KEY", "_URL"))))
"""


@pytest.mark.parametrize(
    ("store", "seen"),
    [
        ("s3://bucket/epochal", ["AWS_ENDPOINT_URL=http://127.0.0.1:9", "AWS_SECRET_ACCESS_KEY=of-s3"]),
        ("abfss://container/epochal", ["AZURE_STORAGE_ACCOUNT_KEY=of-azure"]),
        ("/data/epochal", []),
        ("hdfs://name/epochal", []),
    ],
)
def test_drivers_receive_the_variables_of_their_object_store_only(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, store: str, seen: list[str]
) -> None:
    """A driver of any project, and a spare, which has the same environment."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "of-azure")
    monkeypatch.setenv("EPOCHAL_DATABASE_URL", "postgresql://ann:word@host/name")
    launcher, reference = drivers.launch(STORE_VARIABLES, store)
    eventually(lambda: not launcher.alive(reference), 30)
    assert last_lines(drivers.log, 10).splitlines() == [str(seen)]
    assert dict(launcher._key(Configuration(), "pricing").environment).get("AWS_SECRET_ACCESS_KEY") == (
        "of-s3" if store.startswith("s3") else None
    )


def test_drivers_receive_only_the_secrets_of_their_project() -> None:
    environment = {
        "EPOCHAL_SECRET_KAFKA": "of default",
        "EPOCHAL_PROJECT_A_SECRET_KAFKA": "of a",
        "EPOCHAL_PROJECT_A_B_SECRET_KAFKA": "of a-b",
        "EPOCHAL_PROJECT_A_SECRET_": "no name",
        "EPOCHAL_PROJECT_A_SECRET_B_SECRET_KAFKA": "of a-secret-b",
    }

    def seen(project: str) -> dict[str, str]:
        found = driver_environment(environment, project)
        return {name: value for name, value in found.items() if "SECRET" in name}

    assert seen("default") == {"EPOCHAL_SECRET_KAFKA": "of default"}
    assert seen("a") == {"EPOCHAL_SECRET_KAFKA": "of a"}
    assert seen("a-b") == {"EPOCHAL_SECRET_KAFKA": "of a-b"}
    assert seen("a-secret-b") == {"EPOCHAL_SECRET_KAFKA": "of a-secret-b"}
    assert seen("b") == seen("secret") == {}
    # The process that forks builders starts without a project.
    assert "SECRET" not in str(driver_environment(environment, None))


@pytest.mark.parametrize("switch", ["1", "0", None])
def test_faults_reach_drivers_of_a_test_only(switch: str | None) -> None:
    environment = {"PATH": os.environ["PATH"], faults.ENVIRONMENT: "[]"} | ({faults.SWITCH: switch} if switch else {})
    seen = driver_environment(environment, "default")
    assert (faults.ENVIRONMENT in seen) is (faults.SWITCH in seen) is (switch == "1")


@pytest.mark.parametrize("switch", ["1", None])
def test_faults_have_no_effect_without_the_switch(switch: str | None) -> None:
    fault = Fault(point="E4.manifest-written", action="raise")
    environment = {**os.environ, faults.ENVIRONMENT: encoded([fault]), faults.SWITCH: switch or ""}
    hit = "from epochal.faults import declare; declare('E4.manifest-written', '').hit(); print('went on')"
    done = subprocess.run([sys.executable, "-c", hit], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "fault injected" in done.stderr) == ((1, True) if switch else (0, False))


def test_driver_survives_its_control_plane_and_is_found_again(tmp_path: Path) -> None:
    launching = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from epochal.driver.orders import DriverOrders
from epochal.service.runtime.launchers.local import LocalLauncher
launcher = LocalLauncher(Path({str(tmp_path / "logs")!r}), (sys.executable, "-c", {SLEEP!r}))
print(launcher.launch(DriverOrders.model_validate_json(sys.stdin.read())), flush=True)
"""
    control_plane = subprocess.run(
        [sys.executable, "-c", launching],
        input=orders(tmp_path).model_dump_json(),
        capture_output=True,
        text=True,
        check=True,
    )
    reference = ProcessReference.parse(control_plane.stdout.strip())
    successor = LocalLauncher(tmp_path / "logs")
    assert successor.alive(reference)
    successor.terminate(reference, kill=True)
    eventually(lambda: not successor.alive(reference), 30)


def test_end_of_a_driver_is_reported_by_its_and_an_adopting_launcher(drivers: Drivers, tmp_path: Path) -> None:
    launcher, reference = drivers.launch(SLEEP)
    notified = {launcher: threading.Event(), LocalLauncher(tmp_path / "logs", launcher._command): threading.Event()}
    for each, event in notified.items():
        each.tell_of_ends(event.set)
        assert each.alive(reference)
    assert not any(event.is_set() for event in notified.values())
    launcher.terminate(reference, kill=True)
    for each, event in notified.items():
        assert event.wait(60)
        eventually(lambda each=each: not each.alive(reference), 30)  # type: ignore[misc]
        each.close()


def test_driver_is_found_by_name_and_launched_once(drivers: Drivers, tmp_path: Path) -> None:
    launcher, reference = drivers.launch(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])")
    name = DriverName("e1", 1)
    successor = LocalLauncher(tmp_path / "logs", launcher._command)

    assert successor.drivers() == {name: reference}
    assert reference.machine == this_machine()
    assert successor.launch(orders(tmp_path)) == reference
    assert name not in LocalLauncher(tmp_path / "logs").drivers()  # drivers of another command

    successor.terminate(reference, kill=True)
    eventually(lambda: successor.drivers() == {}, 30)


def test_reused_process_id_is_not_signalled(drivers: Drivers) -> None:
    launcher, reference = drivers.launch(SLEEP)
    process = LocalProcess.parse(reference.identity)
    earlier = ProcessReference(identity=str(LocalProcess(process.pid, process.started + "0")))
    assert not launcher.alive(earlier)
    launcher.terminate(earlier, kill=True)
    assert launcher.alive(reference)


def test_kill_terminates_the_whole_process_group(drivers: Drivers, tmp_path: Path) -> None:
    note = tmp_path / "child"
    launcher, reference = drivers.launch(
        f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]);"
        f"open({str(note)!r}, 'w').write(str(c.pid)); c.wait()"
    )
    eventually(lambda: note.exists() and note.read_text() != "", 30)
    child = LocalProcess.find(int(note.read_text()))
    assert child is not None
    launcher.terminate(reference, kill=True)
    eventually(lambda: not launcher.alive(reference) and not child.exists(), 30)
    assert launcher.exit_code(reference) == -signal.SIGKILL


def test_suspended_process_counts_as_alive(drivers: Drivers) -> None:
    launcher, reference = drivers.launch(SLEEP)
    os.kill(LocalProcess.parse(reference.identity).pid, signal.SIGSTOP)
    assert launcher.alive(reference)


def _java(folder: Path, version: str) -> dict[str, str]:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return {"JAVA_HOME": str(folder), "PATH": os.environ["PATH"]}


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_java_is_recognised(tmp_path: Path, version: str, major: int) -> None:
    assert check_java(_java(tmp_path / "java", version)) == major


def test_outdated_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"is Java 8\. Install Java 17"):
        check_java(_java(tmp_path / "java", "1.8.0_402"))


def test_missing_java_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no `java` on the PATH"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(EnvironmentProblem, match="JAVA_HOME"):
        check_java({"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path)})


def test_log_is_tailed_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [f"line {number} {'x' * (number % 300)}\n".encode() for number in range(5000)]
    log.write_bytes(b"".join(lines) + b"unfinished")
    text, follower = tail_and_follow(log, 3)
    assert text == lines[-2] + lines[-1] + b"unfinished"
    assert follower.position == log.stat().st_size
    with log.open("ab") as more:
        more.write(b" and more\n")
    assert b"".join(follower.appended()) == b" and more\n"
    assert tail(log, 100_000) == log.read_bytes()
    assert tail(log, 0) == b""
    assert tail(tmp_path / "none", 5) == b""


def test_log_is_rotated_while_it_is_written_and_followed(tmp_path: Path) -> None:
    """The writer holds the file open, as a driver and its JVM do."""
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as writer:
        expected, read = b"", b""
        follower = LogFollower(path)
        for number in range(50):
            line = f"{number} {'x' * 30}\n".encode()
            writer.write(line)
            expected += line
            if number % 3 == 0:
                read += b"".join(follower.appended())
            rotate(path, largest=200, files=2)
        read += b"".join(follower.appended())
    assert read == expected
    assert sorted(tmp_path.iterdir()) == [path, rotated(path, 1), rotated(path, 2)]
    remaining = rotated(path, 2).read_bytes() + rotated(path, 1).read_bytes() + path.read_bytes()
    assert expected.endswith(remaining) and len(remaining) > 400
    assert path.stat().st_size <= 200
    assert tail(path, 1000) == remaining
    assert last_lines(path, 9).encode() == b"".join(expected.splitlines(keepends=True)[-9:]).rstrip()


@pytest.mark.parametrize("cut", [False, True])
def test_interrupted_rotation_is_completed(tmp_path: Path, cut: bool) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"" if cut else b"first\n")
    path.with_name("log.part").write_bytes(b"first\n")
    assert rotate(path, largest=100, files=2) is cut
    assert tail(path, 10) == b"first\n"
    assert not path.with_name("log.part").exists()
