"""Forks and rollbacks copy no state: their time does not depend on the number of keys."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.result import Result, at_most, number
from benchmarks.running import has_key, running_control_plane, submit, wait_for
from epochal.client import Client
from epochal.client.applications import ApplicationHandle

SIZES = (1_000, 2_000_000)
TIMES = 7
"""Number of forks and rollbacks; the first one is not counted."""


def run(folder: Path) -> list[Result]:
    forks, rollbacks = {}, {}
    with running_control_plane(folder) as (_, client):
        for keys in SIZES:
            name = f"keys-{keys}"
            # At least two epochs, so that a rollback is possible.
            records = min(250_000, keys // 2)
            settings = {"max_records_per_epoch": records, "epoch_interval_seconds": 0.0}
            application = submit(client, name, {"keys": keys, "bound": keys}, settings)
            wait_for(partial(has_key, application, keys - 1), f"{keys} keys")
            wait_for(partial(_stopped, application), f"the end of {name}")
            forks[keys] = _forks(client, name)
            rollbacks[keys] = _rollbacks(application)
    fork = f"the request that creates the application and its branch; median of {TIMES - 1}"
    rollback = f"plan and confirmed request, alternating between the first and the last epoch; median of {TIMES - 1}"
    return [
        *(number(f"fork at {keys:,} keys", value, "ms", fork, digits=0) for keys, value in forks.items()),
        at_most("fork, slowest", max(forks.values()), 300, "ms", digits=0),
        *(number(f"rollback at {keys:,} keys", value, "ms", rollback, digits=0) for keys, value in rollbacks.items()),
        at_most("rollback, slowest", max(rollbacks.values()), 300, "ms", digits=0),
    ]


def _forks(client: Client, name: str) -> float:
    seconds = []
    for number_of_fork in range(TIMES):
        started = time.perf_counter()
        client.applications.fork(name, f"{name}-fork-{number_of_fork}", start=False)
        seconds.append(time.perf_counter() - started)
    return median(seconds[1:]) * 1000


def _rollbacks(application: ApplicationHandle) -> float:
    numbers = sorted(epoch.epoch for epoch in application.epochs.list(None, "committed"))
    seconds = []
    for turn in range(TIMES):
        epoch = numbers[0] if turn % 2 == 0 else numbers[-1]
        started = time.perf_counter()
        plan = application.rollback.plan(epoch=epoch)
        operation = application.rollback.to(epoch=epoch, confirm=plan.confirm)
        seconds.append(time.perf_counter() - started)
        assert operation.state == "succeeded"
    return median(seconds[1:]) * 1000


def _stopped(application: ApplicationHandle) -> bool:
    return application.get().state == "stopped"
