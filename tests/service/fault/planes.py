"""Control planes with scripted drivers: one in this process, or processes that are killed at a fault point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import httpx

from epochal.faults import Fault
from epochal.service.domain.settings import Settings
from epochal.testing.drivers import planned
from epochal.testing.fork_server import ForkedProcess, ForkServer
from tests.service.conftest import Plane, StandInSupervisor, serving

PROCESS = "tests.service.fault.plane_process"
ROOT = Path(__file__).parents[3]
SECONDS = 60

KilledPlane = Callable[[Settings, str], AbstractContextManager[httpx.Client]]


@contextmanager
def running_plane(settings: Settings) -> Iterator[Plane]:
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=settings.url, headers=headers, trust_env=False, timeout=30) as client:
            yield Plane(control, client, settings, supervisor, [])


def killed_planes(server: ForkServer | None, log: Path) -> KilledPlane:
    """Control planes that are killed at a fault point; the block ends when the process has been killed."""

    @contextmanager
    def block(settings: Settings, point: str) -> Iterator[httpx.Client]:
        environment = os.environ | planned([Fault(point, "kill")])
        process = _start(server, [str(settings.data), str(settings.port)], environment, log)
        try:
            headers = {"Authorization": f"Bearer {settings.admin_token_file.read_text().strip()}"}
            with httpx.Client(base_url=settings.url, headers=headers, trust_env=False, timeout=30) as client:
                deadline = time.monotonic() + SECONDS
                while True:
                    with suppress(httpx.TransportError):
                        if client.get("/readyz").is_success:
                            break
                    assert process.poll() is None and time.monotonic() < deadline
                    time.sleep(0.02)
                yield client
                assert process.wait(SECONDS) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()

    return block


def _start(
    server: ForkServer | None, arguments: list[str], environment: dict[str, str], log: Path
) -> ForkedProcess | subprocess.Popen[bytes]:
    if server is not None:
        return server.start(PROCESS, arguments, environment, log)
    return subprocess.Popen([sys.executable, "-m", PROCESS, *arguments], env=environment, cwd=ROOT)
