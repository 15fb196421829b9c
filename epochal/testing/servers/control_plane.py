"""A private control plane: ``epochal up`` as a process with its own data folder and port.

Drivers outlive their control plane by design. This kit stops all drivers that still run at the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from epochal import faults
from epochal.client import Client
from epochal.errors import EpochalError
from epochal.testing.servers.process import LOOPBACK, ServerProcess, free_port

START_SECONDS = 180
STOP_SECONDS = 20
COMMAND = Path(sys.executable).with_name("epochal")
PASSED_ON = ("PATH", "JAVA_HOME", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")


class ControlPlane:
    """A running control plane. ``home`` holds everything it writes; ``environment`` lets a command line find it.

    Without ``EPOCHAL_WARM_DRIVERS`` in ``extra`` it keeps no warm drivers; an empty value selects the default number.
    """

    def __init__(self, folder: Path, port: int, extra: Mapping[str, str]) -> None:
        self.url = f"http://{LOOPBACK}:{port}"
        self.home = folder / "home"
        self.log = folder / "control-plane.log"
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        places = {"EPOCHAL_URL": self.url, "EPOCHAL_HOME": str(self.home)}
        # Tests and examples keep their files in private folders, which no other user may enter.
        own = {"EPOCHAL_DRIVER_USER": str(os.geteuid()), faults.SWITCH: "1", "EPOCHAL_WARM_DRIVERS": "0"}
        self.environment = passed_on | own | places | dict(extra)
        self._port = port
        # Drivers that outlive this process reconnect to the same internal port.
        self._internal_port = free_port()
        self.process = self._start()

    def client(self) -> Client:
        """Return a client with the admin token."""
        return Client(self.url, (self.home / "admin.token").read_text().strip())

    def run(self, *arguments: str, columns: int = 120, colour: bool = False) -> subprocess.CompletedProcess[str]:
        """Run an ``epochal`` command against this control plane. Standard output and standard error are combined."""
        environment = self.environment | {"COLUMNS": str(columns)} | ({"FORCE_COLOR": "1"} if colour else {})
        return subprocess.run(
            [COMMAND, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def restart(self, kill: bool = False, wait: bool = True) -> None:
        """Stop the process (``kill``: with SIGKILL) and start another on the same data and port. Drivers continue.

        The new process has the current ``environment``. ``wait=False`` does not wait until it is ready; a planned
        fault can end it earlier.
        """
        self.process.stop(signal.SIGKILL if kill else signal.SIGTERM, STOP_SECONDS)
        self.process = self._start()
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the control plane is ready. Raises ``ServerUnavailable`` with the end of its log."""
        self.process.wait_until(self._ready, START_SECONDS)

    def stop(self) -> None:
        """Stop the applications, then the control plane, then the remaining drivers."""
        drivers: set[int] = set()
        if self.process.running:
            with contextlib.suppress(EpochalError, OSError), self.client() as client:
                _stop_applications(client)
                drivers = _drivers(client)
        self.process.stop(signal.SIGTERM, STOP_SECONDS)
        for driver in drivers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(driver, signal.SIGKILL)

    def _start(self) -> ServerProcess:
        return ServerProcess(
            "The control plane",
            [COMMAND, "up", "--port", str(self._port), "--internal-port", str(self._internal_port)],
            self.log,
            self.environment,
        )

    def _ready(self) -> bool:
        with contextlib.suppress(EpochalError, OSError), self.client() as client:
            return client.ready()
        return False


@contextmanager
def control_plane(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[ControlPlane]:
    """Start a control plane below ``folder``, wait until it is ready, and leave no running process at the end.

    ``environment`` adds variables, for example ``EPOCHAL_FAULTS``. Raises ``ServerUnavailable``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plane = ControlPlane(folder, free_port(), environment or {})
    try:
        plane.wait_until_ready()
        yield plane
    finally:
        plane.stop()


def _stop_applications(client: Client) -> None:
    running = [item.name for item in client.applications.list() if item.state in ("starting", "running")]
    operations = []
    for name in running:
        with contextlib.suppress(EpochalError):
            operations.append(client.applications.stop(name))
    for operation in operations:
        with contextlib.suppress(EpochalError):
            client.operations.wait(operation, timeout_seconds=STOP_SECONDS)


def _drivers(client: Client) -> set[int]:
    """Return the process ids of running drivers on this machine. Each leads a separate process group."""
    return {
        process_id(attempt.process)
        for application in client.applications.list()
        for execution in client.application(application.name).executions.list(limit=None)
        for attempt in execution.attempts
        if attempt.state == "running" and attempt.process and attempt.process.startswith("//")
    }


def process_id(reference: str) -> int:
    """Return the process id in an attempt's ``process``.

    ``//host/boot/4711@39181`` is process 4711 in that boot of the machine ``host``; a later process with the same id
    has another reference.
    """
    return int(reference.rpartition("/")[2].partition("@")[0])
