"""``make figures``: charts like those of section 6 of the SDG paper, each measured in a separate process.

python -m benchmarks.figures                        all, each written to its part of RESULTS.md when measured
python -m benchmarks.figures state-size recovery    some
python -m benchmarks.figures --quick                the smallest size as a check; printed only
python -m benchmarks.figures --into /tmp/tried      write page and charts to this folder, not to RESULTS.md
"""

from __future__ import annotations

import sys

from benchmarks.figure_runs import FigureRuns
from benchmarks.sdg import checkpoints, key_value, recovery, straggler, windows

RUNS = FigureRuns(
    "figures",
    "benchmarks.figures",
    {
        "read-write-ratio": key_value.read_write_ratio,
        "state-size": key_value.state_size,
        "windows": windows.windows,
        "straggler": straggler.straggler,
        "recovery": recovery.recovery,
        "checkpoints": checkpoints.checkpoints,
    },
    """## Figures of the SDG paper

Written by `make figures`: the measurements of section 6 of the paper, on one machine and with epochs. A call is
answered when its epoch is committed: it waits for the end of the current epoch, and for the next one.

Figures of the paper that are not reproduced, in addition to those named below: figure 6 beyond 200 MB of state (the
paper goes to 2.5 GB on one machine, with throughput "largely unaffected"; here it falls as the state grows); figures 7
and 9, by number of machines, and figure 12, synchronous against asynchronous checkpoints, which are not measured.
Figure 8 is not reproduced for windows of 100 ms: each window is an epoch, which is scheduled as a job.""",
    limit_seconds=900,
)

if __name__ == "__main__":
    sys.exit(RUNS.main(__doc__.splitlines()[0]))
