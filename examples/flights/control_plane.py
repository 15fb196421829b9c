"""The control plane of the demo: ``epochal up`` as a process of its own, with a data folder that is thrown away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochal.client import Client
from epochal.errors import EpochalError

START_SECONDS = 60
STOP_SECONDS = 30
COMMAND = Path(sys.executable).with_name("epochal")


@dataclass(frozen=True)
class ControlPlane:
    """Where it is, and the log of the process."""

    url: str
    home: Path
    log: Path

    def client(self) -> Client:
        return Client(self.url, (self.home / "admin.token").read_text().strip())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``epochal`` against this control plane, as a person would, and capture what it prints, in colour."""
        environment = os.environ | {
            "EPOCHAL_URL": self.url,
            "EPOCHAL_HOME": str(self.home),
            "FORCE_COLOR": "1",
            "COLUMNS": "110",
        }
        return subprocess.run(
            [COMMAND, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Start it on a free port and wait until it is ready; stop it, and with it every driver, at the end."""
    home, log = folder / "home", folder / "control-plane.log"
    url = f"http://127.0.0.1:{_free_port()}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [COMMAND, "up", "--port", url.rsplit(":", 1)[1]],
            env=os.environ | {"EPOCHAL_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops things in order
        )
    try:
        plane = ControlPlane(url, home, log)
        _wait_until_ready(plane, process)
        yield plane
    finally:
        _stop(process)


def _wait_until_ready(plane: ControlPlane, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with plane.client() as client:
                if client.ready():
                    return
        except (EpochalError, FileNotFoundError):
            time.sleep(0.1)
    raise RuntimeError(f"The control plane did not start. Its log:\n{plane.log.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
