"""Cost of checkpoints by size of state (figures 12 and 13 of the paper): epochs with and without, and writing alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks import engine
from benchmarks.figure import Figure, Panel
from benchmarks.measures.snapshot import TimedBackend
from benchmarks.result import percentile
from benchmarks.sdg import keyed_store
from benchmarks.sdg.key_value import COLD_EPOCHS


@dataclass(frozen=True)
class Sizes:
    """``keys`` of state; numbers of ``calls`` an epoch; ``epochs`` of each of ``turns``. The first turn and the first
    two epochs of each turn do not count."""

    keys: tuple[int, ...]
    calls: tuple[int, ...]
    turns: int
    epochs: int
    filled_an_epoch: int


FULL = Sizes((10_000, 100_000, 1_000_000), (1_000, 50_000), 4, 8, 250_000)
QUICK = Sizes((500, 2_000), (200,), 2, 3, 1_000)
WITH, WITHOUT = "with checkpoints", "without"


@dataclass(frozen=True)
class Checkpoint:
    """Seconds of one epoch: writing of the changes in the slowest subtask, and the whole epoch."""

    written: float
    epoch: float


Found = Mapping[tuple[int, bool], Sequence[Checkpoint]]
"""Results by calls an epoch and whether the state is durable."""


def checkpoints(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    found = {keys: measure(folder / str(keys), keys, sizes) for keys in sizes.keys}
    return Figure(
        "sdg-checkpoints",
        "Key/value store: what checkpoints cost",
        "keys, of about 100 bytes each",
        True,
        [
            *(_epochs(calls, found) for calls in sizes.calls),
            Panel(
                "writing an epoch's changes, ms",
                {
                    f"{calls:,} calls an epoch": [
                        (float(keys), median(each.written for each in those[calls, True]) * 1000)
                        for keys, those in found.items()
                    ]
                    for calls in sizes.calls
                },
            ),
            Panel(
                "of the epoch's time, %",
                {
                    f"{calls:,} calls an epoch": [
                        (float(keys), median(each.written / each.epoch for each in those[calls, True]) * 100)
                        for keys, those in found.items()
                    ]
                    for calls in sizes.calls
                },
            ),
        ],
        "A keyed function with alternating puts and gets. Every epoch ends with a checkpoint of its changes:\n"
        "writing them means to sort, encode and sync them, in the slowest subtask. Without checkpoints the state has\n"
        "`durable=False`, so that changes are written unsynced to the cache of this machine, and are in no snapshot.\n"
        "The next epoch reads them there, and every 32 epochs a subtask merges its files; with checkpoints a thread\n"
        "of the driver merges them, in parallel with the epochs.",
    )


def _epochs(calls: int, found: Mapping[int, Found]) -> Panel:
    lines: dict[str, list[tuple[float, float]]] = {}
    for label, durable in ((WITH, True), (WITHOUT, False)):
        for keys, those in found.items():
            milliseconds = [each.epoch * 1000 for each in those[calls, durable]]
            lines.setdefault(f"{label}, median", []).append((float(keys), median(milliseconds)))
            lines.setdefault(f"{label}, 95th percentile", []).append((float(keys), percentile(milliseconds, 0.95)))
    return Panel(f"epoch of {calls:,} calls, ms", lines)


def measure(folder: Path, keys: int, sizes: Sizes) -> Found:
    """Measure two stores of ``keys`` keys in ``folder``, which alternate. Returns the counted epochs."""
    settings = engine.configuration(folder)
    stores = {durable: folder / ("with" if durable else "without") for durable in (True, False)}
    found: dict[tuple[int, bool], list[Checkpoint]] = {each: [] for each in product(sizes.calls, stores)}
    times = folder / "times"
    times.mkdir(parents=True)
    with (
        engine.engine_session(settings) as spark,
        patch("epochal.engine.assembly.find", lambda group, name: partial(TimedBackend, times)),
    ):
        for durable, store in stores.items():
            keyed_store.fill(store, durable, keys, sizes.filled_an_epoch, spark, settings)
        for turn in range(sizes.turns):
            for number, (calls, durable) in enumerate(found):
                for file in times.iterdir():
                    file.unlink()
                seed = turn * len(found) + number
                epochs = keyed_store.called(stores[durable], durable, keys, calls, sizes.epochs, seed, spark, settings)
                both = zip(slowest(times), epochs, strict=True)
                if turn:
                    found[calls, durable] += [Checkpoint(each, epoch.seconds) for each, epoch in both][COLD_EPOCHS:]
    return found


def slowest(times: Path) -> list[float]:
    """Seconds of the slowest subtask of each epoch, as ``TimedTransaction`` recorded them."""
    found: dict[int, float] = {}
    for file in times.iterdir():
        epoch = int(file.name.partition("-")[0])
        found[epoch] = max(found.get(epoch, 0.0), float(file.read_text()))
    return [found[epoch] for epoch in sorted(found)]
