"""A control plane with one application, for the measures over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epochal.client import Client
from epochal.client.applications import ApplicationHandle
from epochal.errors import EpochalError, NotFound, NotYetCommitted
from epochal.testing.servers.control_plane import ControlPlane, control_plane

ARTIFACT = Path(__file__).with_name("applications.py")
PATIENCE_SECONDS = 300


@contextmanager
def running_control_plane(folder: Path) -> Iterator[tuple[ControlPlane, Client]]:
    with control_plane(folder) as plane, plane.client() as client:
        yield plane, client


def submit(
    client: Client, name: str, parameters: dict[str, Any], configuration: dict[str, Any] | None = None
) -> ApplicationHandle:
    """Create an application and wait for its first committed epoch."""
    artifact = client.artifacts.upload(ARTIFACT)
    client.applications.create(name, artifact.sha256, parameters=parameters, configuration=configuration)
    application = client.application(name)
    wait_for(lambda: head(application) > 0, f"the first epoch of {name}")
    return application


def head(application: ApplicationHandle) -> int:
    """Number of the latest committed epoch, or 0."""
    found = application.get().head
    return found.epoch if found else 0


def has_key(application: ApplicationHandle, key: int) -> bool:
    try:
        application.state("counts").get(key)
    except (NotFound, NotYetCommitted):
        return False
    return True


def wait_for(
    condition: Callable[[], bool], what: str, pause: float = 0.1, patience_seconds: float = PATIENCE_SECONDS
) -> float:
    """Wait for ``condition()`` and return the seconds. Raises ``EpochalError`` after the timeout."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > patience_seconds:
            raise EpochalError(f"The benchmark waited {patience_seconds:g} s for {what}.")
        time.sleep(pause)
    return time.monotonic() - started
