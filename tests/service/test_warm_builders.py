"""The builder's children that are ready before anybody asks, without Spark: who gets one, and when none does."""

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
        """After a look: the process that is ready, or 0."""
        self.control.sendall(b"l")
        said = b""
        while not said.endswith(b"\n"):
            said += self.control.recv(100)
        return int(said)

    def warmed(self) -> int:
        found: list[int] = []

        def one() -> bool:
            found.append(self.ready())
            return found[-1] > 0

        eventually(one)
        return found[-1]

    def ask(self) -> str:
        """Who has answered."""
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


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_one_that_is_ready_answers_one_request_and_another_takes_its_place(builder: Builder) -> None:
    first = builder.warmed()
    assert builder.ask() == str(first)
    assert builder.ask() == "none"
    eventually(lambda: is_gone(first))
    assert builder.warmed() != first


def test_one_that_was_killed_is_replaced(builder: Builder) -> None:
    first = builder.warmed()
    os.killpg(first, signal.SIGKILL)
    eventually(lambda: is_gone(first))
    assert builder.ask() == "none"
    assert builder.warmed() != first


def test_one_whose_spark_does_not_answer_any_more_is_not_used(builder: Builder, tmp_path: Path) -> None:
    first = builder.warmed()
    (tmp_path / "broken").touch()
    assert builder.ask() == "none"
    eventually(lambda: is_gone(first))


def test_one_that_hangs_is_killed(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "broken", 0.5)
    try:
        first = builder.warmed()
        os.kill(first, signal.SIGSTOP)
        assert builder.ask() == "none"
        eventually(lambda: is_gone(first))
    finally:
        builder.end()


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_they_end_with_the_builder(builder: Builder, number: signal.Signals | None) -> None:
    first = builder.warmed()
    if number is not None:
        builder.process.send_signal(number)
    builder.end()
    eventually(lambda: is_gone(first))


REKEY = RekeyOf(
    application="a",
    store="s",
    head=ManifestReference(branch="a", epoch=1, path="a/1", sha256=""),
    at={"branch": "a", "epoch": 2},  # type: ignore[arg-type]
    by="me",
)
OF_ITS_OWN = {"spark.sql.session.timeZone": "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("work", "configuration", "suits"),
    [
        (Describe(), Configuration(), False),
        (Analyse(), Configuration(master="spark://somewhere:1", parallelism=8), True),
        (Analyse(), Configuration(spark=OF_ITS_OWN), False),
        (REKEY, Configuration(parallelism=8), True),
        (REKEY, Configuration(master="local[4]"), False),
    ],
)
def test_what_asks_for_another_spark_starts_its_own(work: Work, configuration: Configuration, suits: bool) -> None:
    request = BuildRequest(artifact=Path("a"), parameters={}, configuration=configuration, seconds=1, work=work)
    assert suits_warm(request) is suits
