"""Requests of a small epoch to S3, by a driver and its control plane, amortised over compaction and collection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.object_store.places import KINDS, PARALLELISM, ROWS, counted, feed, place_in_s3, purposes, submit
from benchmarks.result import Result, at_most, number
from benchmarks.running import head, wait_for
from epochal.testing.servers.s3_requests import Request

EPOCHS, FIRST = 100, 10
"""Counted epochs, after the first ones. With bases every 50 epochs, two compactions are counted."""
COMPACT_AFTER, RETAINED = 50, 25
INTERVAL_SECONDS, IDLE_SECONDS = 0.5, 10


def run(folder: Path, epochs: int = EPOCHS) -> list[Result]:
    source = feed(folder / "input", FIRST)
    settings = {
        "epoch_interval_seconds": INTERVAL_SECONDS,
        "compact_after_epochs": COMPACT_AFTER,
        "retained_epochs": RETAINED,
    }
    with place_in_s3(folder / "plane") as place, place.plane.client() as client:
        application = submit(client, "counts", source, folder / "output", settings)
        wait_for(lambda: head(application) >= FIRST, "the first epochs")
        place.wait_until_idle()

        first, mark = head(application), place.mark
        feed_more(folder, source, epochs)
        wait_for(lambda: head(application) >= first + epochs, f"{epochs} epochs")
        place.wait_until_idle()
        of_epochs = place.requests(mark)
        ran = head(application) - first

        mark = place.mark
        client.operations.wait(client.store.collect(grace_seconds=0), timeout_seconds=120)
        place.wait_until_idle()
        of_collection = place.requests(mark)

        mark = place.mark
        time.sleep(IDLE_SECONDS)
        of_idle = place.requests(mark)
    return _results([*of_epochs, *of_collection], of_collection, of_idle, ran)


def feed_more(folder: Path, source: Path, files: int) -> None:
    """Move new files of input into the folder that a source reads."""
    for file in sorted(feed(folder / f"more-{files}", files).iterdir()):
        file.rename(source / f"more-{file.name}")


def _results(
    requests: Sequence[Request], of_collection: Sequence[Request], of_idle: Sequence[Request], epochs: int
) -> list[Result]:
    bases = sum(request.kind == "PUT" and "/bases/" in request.path for request in requests)
    how = (
        f"{ROWS:,} rows an epoch, parallelism {PARALLELISM}, a keyed aggregate, a files sink in a local folder; driver "
        f"and control plane, {epochs} epochs with {bases} files of bases, {RETAINED} retained, and a collection "
        f"({counted(of_collection)})"
    )
    parts = ", ".join(f"{name} {count / epochs:.2f}" for name, count in purposes(requests).most_common())
    by_kind = [
        number(
            f"small epoch in S3: {kind} requests",
            sum(request.kind == kind for request in requests) / epochs,
            "",
            "amortised, for each epoch",
        )
        for kind in KINDS
    ]
    return [
        at_most("small epoch in S3: all requests", len(requests) / epochs, 3, "", f"{how}; {parts}"),
        *by_kind,
        at_most(
            "S3 without input: requests", len(of_idle), 0, "", f"in {IDLE_SECONDS} s: {counted(of_idle)}", digits=0
        ),
    ]
