"""Time that a small epoch waits for its store: T1, T3 and E4, with S3 at several delays and with a local folder.

All sides run alternately in one Spark session, in the process of the benchmark. The requests between the choice of the
input and the decision are those of the critical path.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks import engine
from benchmarks.object_store.application import Parameters, build
from benchmarks.object_store.places import PARALLELISM, ROWS, bucket, counted, feed
from benchmarks.result import Result, at_most, number
from epochal.contracts.measurements import MeasuredStep, TaskStep
from epochal.contracts.source import Source
from epochal.engine.meter import Meter
from epochal.testing.servers.s3_proxy import S3Proxy
from epochal.testing.servers.s3_requests import Request

TURNS, EPOCHS, WARM = 4, 20, 6
"""Epochs of each side in a turn. The first ones, of a new attempt, are not counted."""
INTERVAL_SECONDS = 0.5
DELAYS = (0, 30, 100)
"""Milliseconds by which each request is delayed."""
REACH = {30: 45}
"""Milliseconds above the time with a local store."""
LOCAL = "local store"


@dataclass(frozen=True)
class Waits:
    """Seconds of the steps of one epoch that use the store; for T1 and T3 those of the slowest task."""

    view: float
    pre_commit: float
    prepare: float
    requests: tuple[Request, ...]

    @property
    def seconds(self) -> float:
        return self.view + self.pre_commit + self.prepare


class StepMeter(Meter):
    """Keeps the durations of each epoch, and the requests since its input was chosen."""

    def __init__(self, proxy: S3Proxy) -> None:
        super().__init__()
        self.epochs: list[Waits] = []
        self._proxy = proxy
        self._mark = proxy.mark()
        self._slowest: dict[TaskStep, float] = {}

    def looked(self, sources: Mapping[str, Source], away: Collection[str] = ()) -> None:
        super().looked(sources, away)
        self._mark = self._proxy.mark()

    def tasks_took(self, epoch: int, tasks: Iterable[Mapping[TaskStep, float]]) -> None:
        durations = list(tasks)
        super().tasks_took(epoch, durations)
        steps: tuple[TaskStep, ...] = ("T1", "T3")
        self._slowest = {step: max(task.get(step, 0.0) for task in durations) for step in steps}

    def took(self, step: MeasuredStep, seconds: float, epoch: int | None = None) -> None:
        super().took(step, seconds, epoch)
        if step == "E4":
            requests = tuple(self._proxy.requests(self._mark))
            self.epochs.append(Waits(self._slowest["T1"], self._slowest["T3"], seconds, requests))


@dataclass
class Side:
    """One store. ``delay_ms`` is ``None`` for the local one."""

    name: str
    delay_ms: int | None
    folder: Path
    store: str | None = None
    epochs: list[Waits] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        return median(epoch.seconds for epoch in self.epochs) * 1000


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    source = feed(folder / "input", turns * EPOCHS)
    with bucket() as (proxy, url):
        os.environ |= proxy.environment()  # of this process, its Spark and its Python workers
        sides = [Side(LOCAL, None, folder / "local")]
        sides += [
            Side(f"S3, {delay} ms a request", delay, folder / f"s3-{delay}", f"{url}/{delay}") for delay in DELAYS
        ]
        with engine.engine_session(engine.configuration(folder)) as spark:
            for turn in range(turns):
                for side in sides[:: -1 if turn % 2 else 1]:
                    _take_turn(side, proxy, spark, source)
    return _results(sides)


def _take_turn(side: Side, proxy: S3Proxy, spark: SparkSession, source: Path) -> None:
    proxy.delay((side.delay_ms or 0) / 1000)
    settings = engine.configuration(
        side.folder, epoch_interval_seconds=INTERVAL_SECONDS, parallelism=PARALLELISM, compact_after_epochs=10_000
    )
    pipeline = build(Parameters(folder=str(source), output=str(side.folder / "output")))
    meter = StepMeter(proxy)
    engine.run_epochs(pipeline, spark, side.folder, settings, EPOCHS, side.store, meter)
    side.epochs += meter.epochs[WARM:]


def _results(sides: list[Side]) -> list[Result]:
    local, *remote = sides
    how = (
        f"{ROWS:,} rows an epoch, every {INTERVAL_SECONDS:g} s, parallelism {PARALLELISM}, a keyed aggregate, a files "
        f"sink; T1 and T3 of the slowest task; median of {len(local.epochs)} epochs, alternately"
    )
    results = [number(f"T1 + T3 + E4 of a small epoch, {local.name}", local.milliseconds, "ms", _steps(local, how), 1)]
    for side in remote:
        above = side.milliseconds - local.milliseconds
        name = f"T1 + T3 + E4 of a small epoch, {side.name}"
        results.append(number(name, side.milliseconds, "ms", _steps(side), 1))
        limit = None if side.delay_ms is None else REACH.get(side.delay_ms)
        name += ": above the local store"
        results.append(number(name, above, "ms", "", 1) if limit is None else at_most(name, above, limit, "ms", "", 1))
    epochs = [epoch for side in remote for epoch in side.epochs]
    requests = [len(epoch.requests) for epoch in epochs]
    of_all = counted([request for epoch in epochs for request in epoch.requests])
    found = (
        f"the greatest number in {len(epochs)} epochs, between the choice of the input and the decision; all: {of_all}"
    )
    return [*results, at_most("small epoch in S3: requests on the critical path", max(requests), 1, "", found, 0)]


def _steps(side: Side, how: str = "") -> str:
    parts = {
        "T1": [epoch.view for epoch in side.epochs],
        "T3": [epoch.pre_commit for epoch in side.epochs],
        "E4": [epoch.prepare for epoch in side.epochs],
    }
    text = ", ".join(f"{step} {median(seconds) * 1000:.1f}" for step, seconds in parts.items())
    return f"{text}; {how}" if how else text
