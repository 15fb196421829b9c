"""``make scale``: what grows with keys, operators, subtasks, tables, epochs, applications and look-ups.

python -m benchmarks.scale                    all, each into its part of RESULTS.md once it is measured
python -m benchmarks.scale keys history       some
python -m benchmarks.scale --quick            in their smallest size, to see that they work; printed only
"""

from __future__ import annotations

import sys

from benchmarks.figure_runs import FigureRuns
from benchmarks.scaling import applications, history, keys, lookups, manifests, widths

RUNS = FigureRuns(
    "scale",
    "benchmarks.scale",
    {
        "keys": keys.keys,
        "operators": widths.operators,
        "subtasks": widths.subtasks,
        "manifests": manifests.manifests,
        "history": history.history,
        "applications": applications.applications,
        "lookups": lookups.lookups,
    },
    """## Scale

Written by `make scale`: what grows with what. [docs/operations/scale.md](../docs/operations/scale.md) says what
follows from it.""",
    limit_seconds=900,
)

if __name__ == "__main__":
    sys.exit(RUNS.main(__doc__.splitlines()[0]))
