"""Recovery m to n (figure 11 of the paper): what m subtasks have written is restored by n, whose caches are empty."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import engine
from benchmarks.sdg import key_value
from benchmarks.sdg.figure import Figure, Panel
from benchmarks.sdg.key_value import Point


@dataclass(frozen=True)
class Sizes:
    """Of each way from ``before`` to ``after`` subtasks ``rounds`` recoveries, of ``keys`` keys each."""

    keys: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    rounds: int
    filled_an_epoch: int


FULL = Sizes((100_000, 500_000, 1_000_000), (1, 2), (1, 2), 3, 250_000)
QUICK = Sizes((1_000,), (1, 2), (2,), 1, 1_000)
CALLS = 1_000


def recovery(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    ways = [(before, after) for before in sizes.before for after in sizes.after]
    # A JVM learns its code in the first recovery, of a few keys, which is not counted.
    seconds(folder / "warm", QUICK.keys[0], (1, 1), QUICK)
    series = {
        f"{before} to {after}": [
            (float(keys), seconds(folder / f"{keys}-{before}-{after}", keys, (before, after), sizes) * 1000)
            for keys in sizes.keys
        ]
        for before, after in ways
    }
    return Figure(
        "sdg-recovery",
        "Key/value store: recovery by m to n subtasks",
        "keys, of about 100 bytes each",
        True,
        [Panel("first epoch after a start, ms", series)],
        f"State that m subtasks have written is restored by n into empty caches: the first epoch after a start, of\n"
        f"{CALLS:,} calls over all keys, with new Python workers in a JVM that runs already. Median of {sizes.rounds}. "
        "All subtasks share\none machine and one disk.",
    )


def seconds(folder: Path, keys: int, way: tuple[int, int], sizes: Sizes) -> float:
    """Of the first epoch after a start without caches, with as many subtasks as ``way`` says before and after."""
    before, after = (engine.configuration(folder, parallelism=each) for each in way)
    with engine.engine_session(before) as spark:
        key_value.fill(folder, keys, sizes.filled_an_epoch, spark, before)
    # Sources know their files by path, so that each round begins with a copy in the same place.
    filled = folder.rename(folder.with_name(f"{folder.name}-filled"))
    found = []
    for _ in range(sizes.rounds):
        shutil.copytree(filled, folder, ignore=shutil.ignore_patterns("cache", "local", "warehouse"))
        # A session of its own: workers keep the state stores that they have opened.
        with engine.engine_session(after) as spark:
            times = key_value.called(folder, Point(keys, CALLS, CALLS // 2), 0, 1, spark, after)
        found.append(times[0].seconds)
        shutil.rmtree(folder)
    shutil.rmtree(filled)
    return median(found)
