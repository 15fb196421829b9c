"""Rescaling 2 -> 4 -> 3 with a million keys while epochs run: the longest gap between epochs, and the rate after it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.result import Result, at_least, at_most, number
from benchmarks.running import has_key, head, running_control_plane, submit, wait_for
from epochal.client import Client
from epochal.client.applications import ApplicationHandle

KEYS = 1_000_000
SLICE = 100_000
EPOCHS = 8


def run(folder: Path) -> list[Result]:
    with running_control_plane(folder) as (_, client):
        settings = {"max_records_per_epoch": SLICE, "epoch_interval_seconds": 0.0, "parallelism": 2}
        application = submit(client, "rescaled", {"keys": KEYS}, settings)
        wait_for(partial(has_key, application, KEYS - 1), f"{KEYS:,} keys")
        before = _more(application, EPOCHS)
        gaps = []
        after: list[float] = []
        for parallelism in (4, 3):
            first = _rescaled(client, application, parallelism)
            after = _more(application, EPOCHS)
            gaps.append(_gap(application, first))
        usual = median(before)
        how = "from the commit of the previous epoch to that of the first epoch with the new parallelism"
        return [
            number("epochs before", usual, "s", f"{SLICE:,} rows each, {KEYS:,} keys, median"),
            at_most("pause of a rescale", max(gaps) / usual, 2.0, "epochs", how),
            at_least("rate after against before", usual / median(after), 0.9, "x", "parallelism 3 against 2"),
        ]


def _rescaled(client: Client, application: ApplicationHandle, parallelism: int) -> int:
    """Rescale the application. Returns the first epoch with the new parallelism."""
    operation = client.operations.wait(application.versions.rescale(parallelism))
    assert operation.result is not None
    return int(operation.result["epoch"])


def _more(application: ApplicationHandle, epochs: int) -> list[float]:
    """Wait for ``epochs`` more epochs. Returns the seconds between their commits."""
    first = head(application)
    wait_for(lambda: head(application) >= first + epochs, f"{epochs} further epochs")
    return _seconds(_commits(application, epochs))


def _gap(application: ApplicationHandle, first: int) -> float:
    commits = {epoch.epoch: epoch.committed_at for epoch in application.epochs.list(100, "committed")}
    before = max(epoch for epoch in commits if epoch < first)
    started, ended = commits[before], commits[first]
    assert started is not None
    assert ended is not None
    return (ended - started).total_seconds()


def _commits(application: ApplicationHandle, epochs: int) -> list[datetime]:
    return sorted(
        epoch.committed_at for epoch in application.epochs.list(epochs, "committed") if epoch.committed_at is not None
    )


def _seconds(commits: Sequence[datetime]) -> list[float]:
    return [(later - earlier).total_seconds() for earlier, later in pairwise(commits)]
