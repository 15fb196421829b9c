"""``python -m tests.chaos --seeds 30 --lives 10``; one seed again: ``python -m tests.chaos --seed 17``."""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.chaos.history import History, Report, all_points
from tests.chaos.servers import DISTURBANCES, running_servers


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    options.add_argument("--seeds", type=int, default=30, help="how many histories")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--lives", type=int, default=10, help="disturbed lives in each")
    options.add_argument("--seed", type=int, help="only this one; its folder is kept")
    options.add_argument("--workers", type=int, default=2, help="histories side by side, each with servers of its own")
    chosen = options.parse_args()
    started = time.monotonic()
    if chosen.seed is not None:
        reports = live([chosen.seed], chosen.lives, keep=True)
    else:
        reports = live_side_by_side(range(chosen.first, chosen.first + chosen.seeds), chosen.lives, chosen.workers)
    summarise(reports, time.monotonic() - started)
    return 1 if any(report.violations for report in reports) else 0


def live_side_by_side(seeds: Sequence[int], lives: int, workers: int) -> list[Report]:
    """Each worker is a process that takes every so manyth seed. Raises what a worker has failed with."""
    shares = [share for first in range(workers) if (share := seeds[first::workers])]
    with ProcessPoolExecutor(len(shares), multiprocessing.get_context("spawn")) as processes:
        futures = [processes.submit(live, share, lives) for share in shares]
        return [report for future in as_completed(futures) for report in future.result()]


def live(seeds: Sequence[int], lives: int, keep: bool = False) -> list[Report]:
    """One history after the other, on servers that are started for them. ``keep``: also the folders of good ones."""
    reports = []
    with running_servers() as servers:
        for seed in seeds:
            folder = Path(tempfile.mkdtemp(prefix=f"epochal-chaos-{seed}-"))
            report = History(seed, folder, servers).live(lives)
            reports.append(report)
            lines = [
                f"seed {seed}: {report.lives} runs, {report.fired.total()} faults, {len(report.violations)} violations",
                *(f"  {violation}" for violation in report.violations),
            ]
            if report.violations or keep:
                lines.append(f"  its logs and store are in {folder}; again: python -m tests.chaos --seed {seed}")
            else:
                shutil.rmtree(folder)
            print("\n".join(lines), flush=True)
    return reports


def summarise(reports: Sequence[Report], seconds: float) -> None:
    fired = sum((report.fired for report in reports), Counter[str]())
    runs, wrong = sum(report.lives for report in reports), sum(bool(report.violations) for report in reports)
    never = sorted({*all_points(), *DISTURBANCES} - fired.keys())
    print(f"\n{runs} runs of {len(reports)} histories in {seconds:.0f} s, {fired.total()} faults fired:")
    for name, times in sorted(fired.items()):
        print(f"  {times:4} {name}")
    print(f"Never fired: {', '.join(never) or 'none'}.")
    print(f"{wrong} histories with violations.")


if __name__ == "__main__":
    sys.exit(main())
