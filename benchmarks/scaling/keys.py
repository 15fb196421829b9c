"""Costs by keys of state: an epoch that changes 10,000 of them, the start of a driver, the size of files."""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.figure import Figure, Panel
from benchmarks.scaling.simulated import COLD_EPOCHS, ROWS, EpochCost, Simulated, median_of

FILLED_AN_EPOCH = 500_000


@dataclass(frozen=True)
class Sizes:
    keys: tuple[int, ...]
    changes: int
    epochs: int


FULL = Sizes((1_000, 10_000, 100_000, 1_000_000, 10_000_000), 10_000, 15)
QUICK = Sizes((500, 2_000), 100, 2)
STORES = ("heap", "lmdb")


@dataclass(frozen=True)
class Found:
    """``first``: seconds of the first epoch of a driver with the cache of its machine; ``restored``: without it."""

    costs: list[EpochCost]
    first: float
    restored: float
    stored: int
    cached: int


def keys(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    found = {
        (keys, store): _measure(folder / f"{store}-{keys}", keys, store, sizes)
        for keys in sizes.keys
        for store in STORES
    }

    def line(store: str, value: str) -> list[tuple[float, float]]:
        return [(float(keys), _values(each)[value]) for (keys, of), each in found.items() if of == store]

    def panel(y: str, *values: str) -> Panel:
        many = len(values) > 1
        return Panel(
            y, {f"{store}, {each}" if many else store: line(store, each) for store in STORES for each in values}
        )

    return Figure(
        "scale-keys",
        "By keys of state",
        "keys of state",
        True,
        [
            panel(f"epoch of {sizes.changes:,} changes, ms", "slowest task", "driver"),
            panel("first epoch of a driver, s", "with the cache", "without"),
            panel("on disk, MB", "store", "cache"),
        ],
        "Two subtasks of one aggregate, a count and a sum for each key (`bigint`), without Spark, so that\n"
        "only Epochal's part is measured. The first epoch of a driver includes its recovery; without the cache of\n"
        "its machine it reads all of its state from the store. The store holds all retained snapshots, the\n"
        "cache the state that tasks of this machine read.",
    )


def _values(found: Found) -> dict[str, float]:
    driver, task, _ = median_of(found.costs)
    return {
        "slowest task": task,
        "driver": driver,
        "with the cache": found.first,
        "without": found.restored,
        "store": found.stored / 1e6,
        "cache": found.cached / 1e6,
    }


def _measure(folder: Path, keys: int, store: str, sizes: Sizes) -> Found:
    simulated, chance = Simulated(folder, state_backend=store), np.random.default_rng(1)
    with simulated.attempt() as timed:
        for start in range(0, keys, FILLED_AN_EPOCH):
            timed.epoch(np.arange(start, min(keys, start + FILLED_AN_EPOCH)))
        costs = [timed.epoch(chance.integers(0, keys, sizes.changes)) for _ in range(COLD_EPOCHS + sizes.epochs)]
    first = _first_epoch(simulated, chance.integers(0, keys, sizes.changes))
    cached = _bytes(simulated.cache)
    shutil.rmtree(simulated.cache, ignore_errors=True)  # the heap store has no cache
    restored = _first_epoch(simulated, chance.integers(0, keys, sizes.changes))
    found = Found(costs[COLD_EPOCHS:], first, restored, _bytes(folder / "store"), cached)
    shutil.rmtree(folder)
    return found


def _first_epoch(simulated: Simulated, keys: np.ndarray) -> float:
    """Seconds of the first epoch of a driver in a new process. Earlier slices are not read again."""
    taken = [ROWS.empty_table()] * len(simulated.rows.slices)
    beginning = replace(simulated, rows=replace(simulated.rows, slices=taken))
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        seconds = process.submit(_timed_first_epoch, beginning, keys).result()
    simulated.rows.slices.append(ROWS.empty_table())
    return seconds


def _timed_first_epoch(simulated: Simulated, keys: np.ndarray) -> float:
    with tempfile.TemporaryDirectory() as another, Simulated(Path(another)).attempt() as timed:
        timed.epoch(keys)  # so that late imports do not count in the first epoch
    started = time.perf_counter()
    with simulated.attempt() as timed:
        timed.epoch(keys)
        return time.perf_counter() - started


def _bytes(folder: Path) -> int:
    """Bytes on disk, without holes of sparse files."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
