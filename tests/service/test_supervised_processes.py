"""Supervised child processes: replaced when they die or hang, with reported errors, and terminated with their
parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.errors import EnvironmentProblem, StorageFull
from epochal.service.runtime import kept_process
from epochal.service.runtime.kept_process import KeptProcess, stop_all
from tests.kit.waiting import eventually

CHILD = """
import os, sys, threading, time
from pathlib import Path
from epochal.errors import StorageFull
from epochal.service.runtime.kept_process import ParentConnection
keeper = ParentConnection()
folder = Path(keeper.orders().decode().strip())
print("output of libraries must not be read as an answer")
with (folder / "lives").open("a") as lives:
    lives.write(f"{os.getpid()}\\n")
if (folder / "full").exists():
    keeper.failed(StorageFull("no space"))
    sys.exit()
if (folder / "dies").exists():
    sys.exit(7)
over = threading.Event()
keeper.when_over(over.set)
keeper.ready()
while not over.wait(0.02):
    keeper.beat()
time.sleep(0.1)
(folder / "ended").touch()
"""


@pytest.fixture
def new_process(tmp_path: Path) -> Callable[..., KeptProcess]:
    (tmp_path / "kept_child.py").write_text(CHILD)
    variables = {"PYTHONPATH": str(tmp_path)}
    return lambda **more: KeptProcess("child", "kept_child", str(tmp_path).encode(), variables=variables, **more)


def started_pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "lives").read_text().split()]


def has_terminated(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_process_that_dies_is_replaced_and_stops_gracefully(
    new_process: Callable[..., KeptProcess], tmp_path: Path
) -> None:
    process = new_process()
    process.start()
    process.wait_until_ready()
    (first,) = started_pids(tmp_path)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(started_pids(tmp_path)) == 2)
    assert process.process == started_pids(tmp_path)[1]
    stop_all([process])
    assert (tmp_path / "ended").exists() and len(started_pids(tmp_path)) == 2


def test_process_that_hangs_is_killed_and_replaced(
    new_process: Callable[..., KeptProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_process, "BEAT_SECONDS", 0.05)
    process = new_process(hung_seconds=1.0)
    process.start()
    process.wait_until_ready()
    eventually(lambda: process.silent_seconds < 1.0)
    (first,) = started_pids(tmp_path)
    os.kill(first, signal.SIGSTOP)
    eventually(lambda: len(started_pids(tmp_path)) >= 2 and process.silent_seconds < 1.0)
    assert process.process != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    stop_all([process])


def test_time_while_the_parent_is_suspended_does_not_count(
    new_process: Callable[..., KeptProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are stopped when the machine is suspended or on Ctrl-Z."""
    monkeypatch.setattr(kept_process, "BEAT_SECONDS", 0.05)
    process = new_process(hung_seconds=60.0)
    process.start()
    process.wait_until_ready()
    (child,) = started_pids(tmp_path)
    os.kill(child, signal.SIGSTOP)
    eventually(lambda: 0.2 < process.silent_seconds < 60)
    monkeypatch.setattr(kept_process, "time", Jumped(1000.0))
    before = process.silent_seconds
    eventually(lambda: process.silent_seconds > before + 0.2)
    assert process.silent_seconds < 60
    os.kill(child, signal.SIGCONT)
    eventually(lambda: process.silent_seconds < 0.2)
    assert started_pids(tmp_path) == [child]
    stop_all([process])


class Jumped:
    """A clock that has jumped ahead by ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds


def test_startup_error_of_the_process_is_raised(new_process: Callable[..., KeptProcess], tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    process = new_process()
    process.start()
    with pytest.raises(StorageFull, match="no space"):
        process.wait_until_ready()
    (tmp_path / "full").rename(tmp_path / "dies")
    process = new_process()
    process.start()
    with pytest.raises(EnvironmentProblem, match="exit code 7"):
        process.wait_until_ready()
    stop_all([process])
    assert len(started_pids(tmp_path)) == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_process_ends_when_its_parent_is_killed(new_process: Callable[..., KeptProcess], tmp_path: Path) -> None:
    new_process()
    script = (
        "import sys, time\n"
        "from epochal.service.runtime.kept_process import KeptProcess\n"
        "process = KeptProcess('child', 'kept_child', sys.argv[1].encode(), variables={'PYTHONPATH': sys.argv[1]})\n"
        "process.start()\n"
        "process.wait_until_ready()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    keeper = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert keeper.stdout is not None and keeper.stdout.readline() == "ready\n"
    keeper.kill()
    keeper.communicate()
    (child,) = started_pids(tmp_path)
    eventually(lambda: has_terminated(child))
    assert (tmp_path / "ended").exists()
