"""``python -m tests.chaos --seeds 30 --lives 10``; one seed again: ``python -m tests.chaos --seed 17``."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.history import History, all_points
from tests.chaos.servers import DISTURBANCES, running_servers


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    options.add_argument("--seeds", type=int, default=30, help="how many histories")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--lives", type=int, default=10, help="disturbed lives in each")
    options.add_argument("--seed", type=int, help="only this one; its folder is kept")
    given = options.parse_args()
    seeds = [given.seed] if given.seed is not None else list(range(given.first, given.first + given.seeds))
    fired: Counter[str] = Counter()
    runs = wrong = 0
    started = time.monotonic()
    with running_servers() as servers:
        for seed in seeds:
            folder = Path(tempfile.mkdtemp(prefix=f"epochal-chaos-{seed}-"))
            told = History(seed, folder, servers).live(given.lives)
            fired, runs, wrong = fired + told.fired, runs + told.lives, wrong + bool(told.violations)
            print(f"seed {seed}: {told.lives} runs, {told.fired.total()} faults, {len(told.violations)} violations")
            for violation in told.violations:
                print(f"  {violation}")
            if told.violations or given.seed is not None:
                print(f"  its logs and store are in {folder}; again: python -m tests.chaos --seed {seed}", flush=True)
            else:
                shutil.rmtree(folder)
    never = sorted({*all_points(), *DISTURBANCES} - fired.keys())
    print(
        f"\n{runs} runs of {len(seeds)} histories in {time.monotonic() - started:.0f} s, {fired.total()} faults fired:"
    )
    for name, times in sorted(fired.items()):
        print(f"  {times:4} {name}")
    print(f"Never fired: {', '.join(never) or 'none'}.")
    print(f"{wrong} histories with violations.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
