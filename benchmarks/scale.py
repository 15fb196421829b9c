"""``make scale``: costs by number of keys, operators, subtasks, tables, epochs, applications and look-ups.

python -m benchmarks.scale                    all, each written to its part of RESULTS.md when measured
python -m benchmarks.scale keys history       some
python -m benchmarks.scale --quick            the smallest size as a check; printed only
"""

from __future__ import annotations

import sys

from benchmarks.figure_runs import FigureRuns
from benchmarks.scaling import applications, history, keys, large_state, lookups, manifests, widths

RUNS = FigureRuns(
    "scale",
    "benchmarks.scale",
    {
        "keys": keys.keys,
        "large-state": large_state.large_state,
        "operators": widths.operators,
        "subtasks": widths.subtasks,
        "manifests": manifests.manifests,
        "history": history.history,
        "applications": applications.applications,
        "lookups": lookups.lookups,
    },
    """## Scale

Written by `make scale`: costs by size. [docs/operations/scale.md](../docs/operations/scale.md) describes the
consequences.""",
    limit_seconds=2400,
)

if __name__ == "__main__":
    sys.exit(RUNS.main(__doc__.splitlines()[0]))
