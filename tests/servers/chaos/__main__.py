"""``python -m tests.servers.chaos --seeds 30 --lives 10``; one seed: ``.. --seed 17``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.servers.chaos.history import Report, all_points
from tests.servers.chaos.machines import DISTURBANCES as MACHINE_DISTURBANCES
from tests.servers.chaos.parallel import live, live_in_parallel
from tests.servers.chaos.servers import DISTURBANCES
from tests.servers.chaos.store import DISTURBANCES as STORE_DISTURBANCES


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.servers.chaos", description=__doc__)
    options.add_argument("--seeds", type=int, default=30, help="number of histories")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--lives", type=int, default=10, help="disturbed driver runs of each history")
    options.add_argument("--seed", type=int, help="only this history; its folder is kept")
    options.add_argument("--workers", type=int, default=2, help="number of worker processes, each with its own servers")
    options.add_argument("--store", choices=["folder", "s3"], help="place of all stores; by default the seed chooses")
    options.add_argument("--cluster", action="store_true", help="executors on three machines, which are disturbed, too")
    chosen = options.parse_args()
    started = time.monotonic()
    if chosen.seed is not None:
        reports = live([chosen.seed], chosen.lives, keep=True, place=chosen.store, cluster=chosen.cluster)
    else:
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        reports = live_in_parallel(seeds, chosen.lives, chosen.workers, chosen.store, chosen.cluster)
    summarise(reports, time.monotonic() - started)
    return 1 if any(report.violations for report in reports) else 0


def summarise(reports: Sequence[Report], seconds: float) -> None:
    fired = sum((report.fired for report in reports), Counter[str]())
    runs, wrong = sum(report.lives for report in reports), sum(bool(report.violations) for report in reports)
    never = sorted({*all_points(), *DISTURBANCES, *STORE_DISTURBANCES, *MACHINE_DISTURBANCES} - fired.keys())
    print(f"\n{runs} runs of {len(reports)} histories in {seconds:.0f} s, {fired.total()} faults fired:")
    for name, times in sorted(fired.items()):
        print(f"  {times:4} {name}")
    print(f"Never fired: {', '.join(never) or 'none'}.")
    print(f"{wrong} histories with violations.")


if __name__ == "__main__":
    sys.exit(main())
