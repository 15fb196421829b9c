"""Cost of the snapshot of an epoch: the share of its time for sorting, encoding and syncing the deltas.

Snapshots cannot be switched off, because tasks never change state in place and the next epoch reads the delta.
Therefore the work is timed within the tasks: the slowest subtask of each epoch, as a share of the epoch.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks import engine, inputs, pipelines
from benchmarks.result import Result, at_most, number
from epochal.backends.delta import DeltaTransaction
from epochal.backends.heap import HeapBackend
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope

FILES, ROWS, KEYS, WARM = 12, 1_000_000, 200_000, 3


class TimedTransaction(DeltaTransaction):
    """Records the duration of its pre-commit in a file."""

    times: Path

    def pre_commit(self) -> Handle:
        started = time.perf_counter()
        handle = super().pre_commit()
        seconds = time.perf_counter() - started
        (self.times / f"{self._scope.epoch.epoch}-{self._scope.subtask}").write_text(str(seconds))
        return handle


class TimedBackend(HeapBackend):
    """A state backend with timed transactions."""

    def __init__(self, times: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._times = times

    def start(self, task: TaskScope) -> DeltaTransaction:
        transaction = super().start(task)
        transaction.__class__ = TimedTransaction
        transaction.times = self._times  # type: ignore[attr-defined]
        return transaction


def run(folder: Path) -> list[Result]:
    source = inputs.write_files(folder / "input", FILES, ROWS, KEYS)
    times = folder / "times"
    times.mkdir()
    settings = engine.configuration(folder / "epochal")
    with (
        engine.engine_session(settings) as spark,
        patch("epochal.engine.assembly.find", lambda group, name: partial(TimedBackend, times)),
    ):
        epochs = engine.run_epochs(pipelines.aggregate(source), spark, folder / "epochal", settings, FILES)
    slowest: dict[int, float] = {}
    for file in times.iterdir():
        epoch = int(file.name.partition("-")[0])
        slowest[epoch] = max(slowest.get(epoch, 0.0), float(file.read_text()))
    deltas = [slowest[epoch] for epoch in sorted(slowest)]
    shares = [delta / epoch.seconds * 100 for delta, epoch in zip(deltas, epochs, strict=True)]
    how = f"{ROWS:,} rows, {KEYS:,} keys an epoch: sort, encode and sync the deltas; median of {FILES - WARM}"
    return [
        number("snapshot: writing an epoch's deltas", median(deltas[WARM:]) * 1000, "ms", how, digits=0),
        at_most("snapshot: share of the epoch's time", median(shares[WARM:]), 3, "%", digits=1),
    ]
