"""Costs by epochs of history: pages of lists and lineage, metrics, start of a control plane and of an attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.figure import Figure, Panel
from benchmarks.measures import long_history
from epochal.service.catalog.standalone import standalone_catalog
from epochal.testing.servers.control_plane import control_plane

EPOCHS = (1_000, 10_000, 100_000)
SMALL = (100, 1_000)
PAGES = {
    "epochs, newest": f"/v1/applications/{long_history.NAME}/epochs?limit=50",
    "lineage, folded": f"/v1/applications/{long_history.NAME}/lineage?limit=100&fold=true",
    "metrics": "/metrics",
}
ATTEMPTS = 5


def history(folder: Path, quick: bool) -> Figure:
    found = {epochs: _measure(folder / str(epochs), epochs) for epochs in (SMALL if quick else EPOCHS)}

    def lines(*names: str) -> dict[str, list[tuple[float, float]]]:
        return {name: [(float(epochs), each[name]) for epochs, each in found.items()] for name in names}

    return Figure(
        "scale-history",
        "By epochs of history",
        "epochs, all retained",
        True,
        [
            Panel("a page, ms", lines(*PAGES)),
            Panel("an attempt begins, ms", lines("catalog's part")),
            Panel("start, s", lines("control plane")),
        ],
        "One application on SQLite, with a row for each epoch, before they are folded into ranges. An attempt\n"
        "begins with its requests to the catalog; it reads the files of its chain, whose length compaction\n"
        "limits.",
    )


def _measure(folder: Path, epochs: int) -> dict[str, float]:
    with control_plane(folder) as plane:
        plane.process.stop()
        url = f"sqlite:///{plane.home / 'catalog.sqlite'}"
        long_history.write_history(url, epochs)
        began = time.monotonic()
        plane.restart()
        started = time.monotonic() - began
        with long_history.client_of(plane) as client:
            found = {
                name: _milliseconds(lambda path=path: client.get(path).raise_for_status())  # type: ignore[misc]
                for name, path in PAGES.items()
            }
        plane.process.stop()

        def begin() -> None:
            catalog = standalone_catalog(url, long_history.NAME, long_history.ARTIFACT)
            catalog.begin_attempt()
            catalog.finish(None)

        return {**found, "catalog's part": _milliseconds(begin), "control plane": started}


def _milliseconds(work: Callable[[], object]) -> float:
    """Median milliseconds of several calls."""
    found = []
    for _ in range(ATTEMPTS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found) * 1e3
