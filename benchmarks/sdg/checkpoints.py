"""What checkpoints cost by size of state (figures 12 and 13 of the paper): an epoch's changes, written in its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks import engine
from benchmarks.measures.snapshot import TimedBackend
from benchmarks.sdg import key_value
from benchmarks.sdg.figure import Figure, Panel
from benchmarks.sdg.key_value import COLD_EPOCHS, Point


@dataclass(frozen=True)
class Sizes:
    """As :class:`benchmarks.sdg.key_value.Sizes`, at each of ``calls`` an epoch."""

    keys: tuple[int, ...]
    calls: tuple[int, ...]
    turns: int
    epochs: int
    filled_an_epoch: int


FULL = Sizes((10_000, 100_000, 1_000_000), (1_000, 10_000, 50_000), 3, 6, 250_000)
QUICK = Sizes((500, 2_000), (200,), 2, 3, 1_000)


@dataclass(frozen=True)
class Checkpoint:
    """Of one epoch, in seconds: writing its changes, in the slowest subtask, and all of it."""

    written: float
    epoch: float

    @property
    def share(self) -> float:
        return self.written / self.epoch


def checkpoints(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    found = {keys: measure(folder / str(keys), keys, sizes) for keys in sizes.keys}
    milliseconds: dict[str, list[tuple[float, float]]] = {}
    shares: dict[str, list[tuple[float, float]]] = {}
    for calls in sizes.calls:
        label, by_keys = f"{calls:,} calls an epoch", {keys: found[keys][calls] for keys in sizes.keys}
        milliseconds[label] = [(keys, median(each.written for each in those) * 1000) for keys, those in by_keys.items()]
        shares[label] = [(keys, median(each.share for each in those) * 100) for keys, those in by_keys.items()]
    return Figure(
        "sdg-checkpoints",
        "Key/value store: what a checkpoint costs",
        "keys, of about 100 bytes each",
        True,
        [Panel("writing an epoch's changes, ms", milliseconds), Panel("of the epoch's time, %", shares)],
        "Half of the calls write. Every epoch ends with a checkpoint, which holds its changes: to sort, encode and\n"
        "sync them, in the slowest subtask. Compaction is not in it.",
    )


def measure(folder: Path, keys: int, sizes: Sizes) -> dict[int, list[Checkpoint]]:
    """By calls an epoch the epochs that count, of a store of ``keys`` keys below ``folder``."""
    settings = engine.configuration(folder)
    times = folder / "times"
    times.mkdir(parents=True)
    found: dict[int, list[Checkpoint]] = {calls: [] for calls in sizes.calls}
    with (
        engine.engine_session(settings) as spark,
        patch("epochal.engine.assembly.find", lambda group, name: partial(TimedBackend, times)),
    ):
        key_value.fill(folder, keys, sizes.filled_an_epoch, spark, settings)
        for turn in range(sizes.turns):
            for number, calls in enumerate(sizes.calls):
                part = turn * len(sizes.calls) + number
                epochs = key_value.called(folder, Point(keys, calls, calls // 2), part, sizes.epochs, spark, settings)
                written = slowest(times)[-sizes.epochs :]
                both = [Checkpoint(each, epoch.seconds) for each, epoch in zip(written, epochs, strict=True)]
                if turn:
                    found[calls] += both[COLD_EPOCHS:]
    return found


def slowest(times: Path) -> list[float]:
    """By epoch the seconds of the subtask that took longest, as ``TimedTransaction`` noted them."""
    found: dict[int, float] = {}
    for file in times.iterdir():
        epoch = int(file.name.partition("-")[0])
        found[epoch] = max(found.get(epoch, 0.0), float(file.read_text()))
    return [found[epoch] for epoch in sorted(found)]
