"""Warm children of the builder, without Spark: which requests get one, and when none is available."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Configuration
from epochal.service.domain.building import Analyse, BuildRequest, Describe, RekeyOf, Work, suits_warm
from tests.kit.waiting import eventually

ROOT = str(Path(__file__).parents[2])
BUILDER = f"""
import sys; sys.path[:0] = [{ROOT!r}]
import os, socket, time
from epochal.driver.spare import Warmed
from epochal.service.runtime.builder.warm import WarmChildren
from epochal.service.runtime.warm_pool import PoolTimes

def serve(descriptor):
    os.write(descriptor, str(os.getpid()).encode())
    os._exit(0)

def get_ready():
    return Warmed(check=lambda: 1 / (not os.path.exists(sys.argv[1])), stop=lambda: None)

control = socket.socket(fileno=os.dup(0))
warm = WarmChildren(1, serve, control.close, PoolTimes(quiet=0, busy=0, pause=0, answer=float(sys.argv[2])), get_ready)
while True:
    message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not message:
        break
    if not descriptors:
        warm.step()
        ready = [process for process, is_ready in warm.states if is_ready]
        control.sendall(f"{{ready[0] if ready else 0}}\\n".encode())
        continue
    if not warm.take(descriptors[0]):
        os.write(descriptors[0], b"none")
    os.close(descriptors[0])
"""


class Builder:
    def __init__(self, broken: Path, patience_seconds: float) -> None:
        ours, theirs = socket.socketpair()
        self.control = ours
        with theirs:
            command = [sys.executable, "-c", BUILDER, str(broken), str(patience_seconds)]
            self.process = subprocess.Popen(command, stdin=theirs.fileno())

    def ready(self) -> int:
        """Take a step, and return the process that is ready, or 0."""
        self.control.sendall(b"l")
        line = b""
        while not line.endswith(b"\n"):
            line += self.control.recv(100)
        return int(line)

    def warmed(self) -> int:
        found: list[int] = []

        def one() -> bool:
            found.append(self.ready())
            return found[-1] > 0

        eventually(one)
        return found[-1]

    def ask(self) -> str:
        """The process that answered."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(self.control, [b"w"], [theirs.fileno()])
            parts = b""
            while part := ours.recv(100):
                parts += part
            return parts.decode()

    def end(self) -> None:
        self.control.close()
        self.process.wait()


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    made = Builder(tmp_path / "broken", 30)
    yield made
    made.end()


def has_terminated(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_warm_child_answers_one_request_and_is_replaced(builder: Builder) -> None:
    first = builder.warmed()
    assert builder.ask() == str(first)
    assert builder.ask() == "none"
    eventually(lambda: has_terminated(first))
    assert builder.warmed() != first


def test_killed_child_is_replaced(builder: Builder) -> None:
    first = builder.warmed()
    os.killpg(first, signal.SIGKILL)
    eventually(lambda: has_terminated(first))
    assert builder.ask() == "none"
    assert builder.warmed() != first


def test_child_with_a_failed_check_is_not_used(builder: Builder, tmp_path: Path) -> None:
    first = builder.warmed()
    (tmp_path / "broken").touch()
    assert builder.ask() == "none"
    eventually(lambda: has_terminated(first))


def test_child_that_hangs_is_killed(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "broken", 0.5)
    try:
        first = builder.warmed()
        os.kill(first, signal.SIGSTOP)
        assert builder.ask() == "none"
        eventually(lambda: has_terminated(first))
    finally:
        builder.end()


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_children_end_with_the_builder(builder: Builder, number: signal.Signals | None) -> None:
    first = builder.warmed()
    if number is not None:
        builder.process.send_signal(number)
    builder.end()
    eventually(lambda: has_terminated(first))


REKEY = RekeyOf(
    application="a",
    store="s",
    head=ManifestReference(branch="a", epoch=1, path="a/1", sha256=""),
    at={"branch": "a", "epoch": 2},  # type: ignore[arg-type]
    by="me",
)
OWN_SPARK = {"spark.sql.session.timeZone": "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("work", "configuration", "suits"),
    [
        (Describe(), Configuration(), False),
        (Analyse(), Configuration(master="spark://somewhere:1", parallelism=8), True),
        (Analyse(), Configuration(spark=OWN_SPARK), False),
        (REKEY, Configuration(parallelism=8), True),
        (REKEY, Configuration(master="local[4]"), False),
    ],
)
def test_requests_with_other_spark_settings_start_cold(work: Work, configuration: Configuration, suits: bool) -> None:
    request = BuildRequest(artifact=Path("a"), parameters={}, configuration=configuration, seconds=1, work=work)
    assert suits_warm(request) is suits
