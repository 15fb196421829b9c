"""A driver is killed: how long until the next epoch is committed, with the JVM's start?"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from statistics import median

from benchmarks.result import Result, at_most, number
from benchmarks.running import head, running_control_plane, submit, wait_for
from epochal.client.application import ApplicationHandle
from epochal.testing.servers.control_plane import process_id

KILLS = 3


def run(folder: Path) -> list[Result]:
    restart = {"backoff_seconds": 0.1, "backoff_limit_seconds": 0.1, "max_restarts": KILLS + 2}
    with running_control_plane(folder) as (_, client):
        application = submit(client, "counts", {"keys": 10_000, "rate": 5_000.0}, {"restart": restart})
        seconds = [_kill_and_wait(application) for _ in range(KILLS)]
    return [
        number("driver killed, to the next committed epoch, median", median(seconds), "s", f"{KILLS} kills", digits=1),
        at_most("driver killed, to the next committed epoch, slowest", max(seconds), 15, "s", "SIGKILL", digits=1),
    ]


def _kill_and_wait(application: ApplicationHandle) -> float:
    at = head(application)
    wait_for(lambda: head(application) >= at + 3, "three epochs before the kill")
    attempt = application.executions.list(limit=1)[0].attempts[-1]
    assert attempt.process is not None
    os.kill(process_id(attempt.process), signal.SIGKILL)
    # What the driver had prepared before it was killed is committed by the next one: that is no new epoch of its own.
    return wait_for(lambda: _committed_by_later(application, attempt.number), "an epoch of the next attempt", 0.05)


def _committed_by_later(application: ApplicationHandle, attempt: int) -> bool:
    return any(epoch.attempt > attempt for epoch in application.epochs.list(limit=3, state="committed"))
