"""Time from the return of a store that was away to the next commit, and the attempts that its absence has cost."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.object_store.places import Place, feed, place_in_s3, submit
from benchmarks.result import Result, at_most
from benchmarks.running import head, wait_for
from epochal.client.applications import ApplicationHandle

SECONDS, FILES, FIRST = 300.0, 600, 5
INTERVAL_SECONDS, LOOK_SECONDS = 0.5, 0.05


def run(folder: Path, seconds: float = SECONDS) -> list[Result]:
    settings = {"epoch_interval_seconds": INTERVAL_SECONDS, "tolerable_failed_epochs": 0}
    with place_in_s3(folder / "plane") as place, place.plane.client() as client:
        application = submit(client, "counts", feed(folder / "input", FILES), folder / "output", settings)
        wait_for(lambda: head(application) >= FIRST, "the first epochs")
        attempts = _attempts(application)
        took = _outage(place, application, seconds)
        failed, more = _failed_attempts(application), _attempts(application) - attempts
    how = f"{seconds:g} s without the store, input all the time, tolerable_failed_epochs=0"
    return [
        at_most("store returns, to next commit", took, 5, "s", how, 1),
        at_most("failed attempts while the store was away", failed, 0, "", f"{more} further attempts", 0),
    ]


def _outage(place: Place, application: ApplicationHandle, seconds: float) -> float:
    """Seconds from the return of the store to the next commit."""
    assert place.proxy is not None
    place.proxy.down()
    time.sleep(seconds)
    before = head(application)
    place.proxy.up()
    return wait_for(lambda: head(application) > before, "an epoch after the return of the store", LOOK_SECONDS)


def _attempts(application: ApplicationHandle) -> int:
    return sum(len(execution.attempts) for execution in application.executions.list(limit=None))


def _failed_attempts(application: ApplicationHandle) -> int:
    """Attempts that ended, also those that did not count as a restart."""
    return sum(
        attempt.failure is not None
        for execution in application.executions.list(limit=None)
        for attempt in execution.attempts
    )
