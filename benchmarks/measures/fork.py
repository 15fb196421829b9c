"""A fork copies no byte of state: it takes as long on a thousand keys as on a million."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.result import Result, at_most, number
from benchmarks.running import has_key, running_control_plane, submit, wait_for
from epochal.client.application import ApplicationHandle

SIZES = (1_000, 1_000_000)
FORKS = 7


def run(folder: Path) -> list[Result]:
    medians = {}
    with running_control_plane(folder) as (_, client):
        for keys in SIZES:
            name = f"keys-{keys}"
            settings = {"max_records_per_epoch": 250_000, "epoch_interval_seconds": 0.0}
            application = submit(client, name, {"keys": keys, "bound": keys}, settings)
            wait_for(partial(has_key, application, keys - 1), f"{keys} keys")
            wait_for(partial(_stopped, application), f"the end of {name}")
            seconds = []
            for number_of_fork in range(FORKS):
                started = time.perf_counter()
                client.applications.fork(name, f"{name}-fork-{number_of_fork}", start=False)
                seconds.append(time.perf_counter() - started)
            medians[keys] = median(seconds[1:]) * 1000
    how = f"the request that makes the application and its branch; median of {FORKS - 1}"
    return [
        *(number(f"fork at {keys:,} keys", value, "ms", how, digits=0) for keys, value in medians.items()),
        at_most("fork, slowest", max(medians.values()), 300, "ms", digits=0),
    ]


def _stopped(application: ApplicationHandle) -> bool:
    return application.get().state == "stopped"
