"""Recovery m to n (figure 11 of the paper): n subtasks with empty caches restore the state of m subtasks."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import engine
from benchmarks.figure import Figure, Panel
from benchmarks.sdg import key_value
from benchmarks.sdg.key_value import Point


@dataclass(frozen=True)
class Sizes:
    """``rounds`` recoveries of ``keys`` keys from each of ``before`` to each of ``after`` subtasks, alternating."""

    keys: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    rounds: int
    filled_an_epoch: int


FULL = Sizes((100_000, 500_000, 1_000_000), (1, 2), (1, 2), 3, 250_000)
QUICK = Sizes((1_000,), (1, 2), (2,), 1, 1_000)
CALLS = 1_000
ONE_MACHINE = """one machine and one disk. In figure 11 of the paper two recovering nodes are faster than one, and two
backup nodes with two recovering nodes are fastest, because each node has its own disk and processors. This is not
reproduced if 1 to 2 or 2 to 2 takes longer than 1 to 1: on one machine a second subtask reads from the same disk
and computes on the same cores, and costs the start of one more Python worker."""
"""Explanation of the result on the page."""


def recovery(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    # The first recovery, of few keys, warms up the JVM and is not counted.
    seconds(folder / "warm", QUICK.keys[0], 1, QUICK)
    milliseconds: dict[str, list[tuple[float, float]]] = {}
    for before in sizes.before:
        for keys in sizes.keys:
            for after, each in seconds(folder / f"{keys}-{before}", keys, before, sizes).items():
                milliseconds.setdefault(f"{before} to {after}", []).append((float(keys), median(each) * 1000))
    return Figure(
        "sdg-recovery",
        "Key/value store: recovery by m to n subtasks",
        "keys, of about 100 bytes each",
        True,
        [Panel("first epoch after a start, ms", milliseconds)],
        f"State of m subtasks is restored by n subtasks into empty caches: the first epoch after a start, of\n"
        f"{CALLS:,} calls over all keys, with new Python workers in a JVM that runs already. Median of {sizes.rounds}. "
        f"All subtasks share\n{ONE_MACHINE}",
    )


def seconds(folder: Path, keys: int, before: int, sizes: Sizes) -> dict[int, list[float]]:
    """Seconds of first epochs after a start without caches, by number of subtasks; ``before`` wrote the state."""
    settings = engine.configuration(folder, parallelism=before)
    with engine.engine_session(settings) as spark:
        key_value.fill(folder, keys, sizes.filled_an_epoch, spark, settings)
    # Sources identify files by path, so that each round begins with a copy at the same path.
    filled = folder.rename(folder.with_name(f"{folder.name}-filled"))
    found: dict[int, list[float]] = {after: [] for after in sizes.after}
    for _ in range(sizes.rounds):
        for after, those in found.items():
            shutil.copytree(filled, folder, ignore=shutil.ignore_patterns("cache", "local", "warehouse"))
            settings = engine.configuration(folder, parallelism=after)
            # A new session for each round, because workers keep opened state stores.
            with engine.engine_session(settings) as spark:
                times = key_value.called(folder, Point(keys, CALLS, CALLS // 2), 0, 1, spark, settings)
            those.append(times[0].seconds)
            shutil.rmtree(folder)
    shutil.rmtree(filled)
    return found
