"""Cost of a control plane by number of applications, of which at most 50 commit an epoch each second."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks.figure import Figure, Panel
from benchmarks.measures.many_applications import Found, Load, measure
from benchmarks.result import percentile

REGISTERED, ACTIVE, SECONDS = (1, 10, 100, 1_000), 50, 20.0
SMALL, FEW_SECONDS = (1, 3), 3.0


def applications(folder: Path, quick: bool) -> Figure:
    seconds = FEW_SECONDS if quick else SECONDS
    found = {
        registered: measure(folder / str(registered), Load(registered, min(ACTIVE, registered), seconds))
        for registered in (SMALL if quick else REGISTERED)
    }
    if restarted := sum(each.restarts for each in found.values()):
        raise RuntimeError(f"drivers were restarted {restarted} times")

    def lines(*names: str) -> dict[str, list[tuple[float, float]]]:
        return {name: [(float(at), _values(each)[name]) for at, each in found.items()] for name in names}

    return Figure(
        "scale-applications",
        "By applications",
        "applications in the catalog",
        True,
        [
            Panel("cores", lines("control plane", "internal process", "PostgreSQL")),
            Panel("ms", lines("an epoch committed, p99", "a look-up, p99", "/metrics")),
            Panel("memory, MB", lines("both processes")),
            Panel("replicas of all, s", lines("built")),
        ],
        f"At most {ACTIVE} of them commit an epoch of two rows each second, by drivers without Spark on the same\n"
        "cores; one control plane, PostgreSQL, and a look-up every 0.1 s.",
    )


def _values(found: Found) -> dict[str, float]:
    measured = found.measured
    return {
        **measured.cores,
        "an epoch committed, p99": percentile(found.late, 0.99) * 1e3,
        "a look-up, p99": percentile(measured.lookups, 0.99) * 1e3,
        "/metrics": median(measured.scrapes) * 1e3,
        "both processes": measured.megabytes,
        "built": found.replicas,
    }
