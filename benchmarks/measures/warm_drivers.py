"""Check of a version, start of an application and kill of a driver, alternately with and without a warm driver."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from uuid import uuid4

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.result import Result, at_most, number
from benchmarks.running import ARTIFACT, PATIENCE_SECONDS, head, wait_for
from epochal.client import Client, Epoch
from epochal.client.applications import ApplicationHandle
from epochal.errors import EpochalError
from epochal.testing.servers.control_plane import ControlPlane, control_plane, process_id
from epochal.wire.applications import AttemptAnswer

TURNS = 1
"""A turn waits several minutes until drivers are warm; --rounds runs more turns."""
WARMING_SECONDS = 900
PARAMETERS = {"keys": 10_000, "rate": 5_000.0}
RESTART = {"backoff_seconds": 0.1, "backoff_limit_seconds": 0.1, "max_restarts": 2}
REACH = {
    "check through a control plane": (1.5, None),
    "submit to first commit": (5.0, None),
    "first epoch of a driver": (1.0, None),
    "driver killed, to next commit": (4.0, 12.0),
    "first epoch of a driver after a killed one": (1.0, None),
}
"""Maximum seconds with and without a warm driver."""


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    seconds: dict[tuple[str, bool], list[float]] = {}
    warmed: list[float] = []
    for turn in range(turns):
        for warm in (True, False) if turn % 2 == 0 else (False, True):
            with _plane(folder / f"{turn}-{warm}", warm) as (plane, client):
                for what, took in _turn(plane, client, warm, warmed):
                    seconds.setdefault((what, warm), []).append(took)
    results = []
    for what, reach in REACH.items():
        for warm in (True, False):
            measured = seconds[what, warm]
            name = f"{what}, {'warm' if warm else 'without a warm'} driver"
            how = f"median of {turns} turns, {min(measured):.1f} to {max(measured):.1f} s"
            limit = reach[0 if warm else 1]
            if limit is None:
                results.append(number(name, median(measured), "s", how, digits=1))
            else:
                results.append(at_most(name, median(measured), limit, "s", how, digits=1))
    how = f"median of {len(warmed)}, {min(warmed):.0f} to {max(warmed):.0f} s, from the start of the driver"
    return [*results, number("time until another driver is warm", median(warmed), "s", how, digits=0)]


@contextmanager
def _plane(folder: Path, warm: bool) -> Iterator[tuple[ControlPlane, Client]]:
    with control_plane(folder, {"EPOCHAL_WARM_DRIVERS": str(int(warm))}) as plane, plane.client() as client:
        yield plane, client


def _turn(plane: ControlPlane, client: Client, warm: bool, warmed: list[float]) -> Iterator[tuple[str, float]]:
    """Start an application, check a version of it, and kill its driver."""
    if warm:
        _wait_until_ready(plane)
    artifact = client.artifacts.upload(ARTIFACT)
    name = f"counts-{uuid4().hex[:6]}"
    began = time.monotonic()
    client.applications.create(name, artifact.sha256, parameters=PARAMETERS, configuration={"restart": RESTART})
    application = client.application(name)
    wait_for(lambda: head(application) > 0, "the first epoch", 0.05)
    yield "submit to first commit", time.monotonic() - began
    yield "first epoch of a driver", _first_epoch(application, 1)
    if warm:
        _wait_until_ready(plane)
        warmed.append(time.monotonic() - began)
    began = time.monotonic()
    assert application.versions.preflight(artifact.sha256).ok
    yield "check through a control plane", time.monotonic() - began
    attempt = application.executions.list(limit=1)[0].attempts[-1]
    yield "driver killed, to next commit", _killed(application, attempt)
    yield "first epoch of a driver after a killed one", _first_epoch(application, attempt.number + 1)
    client.applications.stop(name)


def _killed(application: ApplicationHandle, attempt: AttemptAnswer) -> float:
    assert attempt.process is not None
    os.kill(process_id(attempt.process), signal.SIGKILL)
    return wait_for(lambda: bool(_committed(application, attempt.number + 1)), "an epoch of the next attempt", 0.05)


def _committed(application: ApplicationHandle, attempt: int) -> list[Epoch]:
    """Committed epochs of a new attempt, newest first."""
    return [epoch for epoch in application.epochs.list(limit=100, state="committed") if epoch.attempt == attempt]


def _first_epoch(application: ApplicationHandle, attempt: int) -> float:
    """Seconds of the first epoch from the trigger to prepared."""
    first = _committed(application, attempt)[-1]
    assert first.prepared_at is not None
    return (first.prepared_at - first.started_at).total_seconds()


def _wait_until_ready(plane: ControlPlane) -> None:
    """Wait for warm drivers, which wait until the machine is quiet."""
    deadline = time.monotonic() + WARMING_SECONDS
    while not _all_ready(plane):
        if time.monotonic() > deadline:
            raise EpochalError(f"The benchmark waited {WARMING_SECONDS} s for warm drivers.")
        time.sleep(0.5)


def _all_ready(plane: ControlPlane) -> bool:
    token = (plane.home / "admin.token").read_text().strip()
    text = httpx.get(
        f"{plane.url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS
    ).text
    found = {
        (sample.name, sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    names = ("epochal_warm_drivers", "epochal_warm_builders")
    return all(found[name, "ready"] >= 1 for name in names)
