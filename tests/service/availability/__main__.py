"""``python -m tests.service.availability --seeds 30`` runs histories one after the other, each on its own servers."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.service.availability.history import Plan, run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--applications", type=int, default=10)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--kinds", help="kinds of faults, separated by commas")
    chosen = parser.parse_args()
    seeds = range(chosen.seeds) if chosen.seed is None else [chosen.seed]
    bad = []
    takeovers: list[float] = []
    for seed in seeds:
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="epochal-availability-"))
        kinds = chosen.kinds.split(",") if chosen.kinds else ()
        plan = Plan(seed, chosen.nodes, chosen.applications, chosen.faults, kinds)
        report = run(plan, folder)
        takeovers += report.takeover_seconds
        print(
            f"seed {seed}: {report.faults.total()} faults, {report.epochs} epochs, {report.lookups} look-ups, "
            f"{report.operations} operations, {report.events} events, "
            f"{time.monotonic() - began:.0f} s, {len(report.problems)} problems",
            flush=True,
        )
        for problem in report.problems:
            print(f"    {problem}", flush=True)
        if report.problems:
            bad.append(seed)
            print(f"    logs: {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    if takeovers:
        print(f"time until another control plane led: maximum {max(takeovers):.1f} s, median {median(takeovers):.1f} s")
    print(f"{len(bad)} of {len(seeds)} histories have problems: {bad}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
