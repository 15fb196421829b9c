"""Costs by operators and by subtasks: an epoch with Spark, and the part of Epochal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import engine, inputs
from benchmarks.figure import Figure, Panel
from benchmarks.scaling.simulated import COLD_EPOCHS, EpochCost, Simulated, median_of
from epochal import Pipeline
from epochal.connectors import files


@dataclass(frozen=True)
class Sizes:
    """``widths``: numbers of operators or subtasks; ``changes``: keys that an epoch changes in each operator."""

    widths: tuple[int, ...]
    changes: int
    epochs: int


FULL = Sizes((1, 4, 16, 64), 10_000, 5)
QUICK = Sizes((1, 2), 100, 2)
PARALLELISM = 2


def operators(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    simulated = {width: _simulated(Simulated(folder / f"{width}", operators=width), sizes) for width in sizes.widths}
    return _figure(
        "operators",
        simulated,
        _with_spark(folder / "spark", sizes, lambda width: (width, PARALLELISM)),
        f"Aggregates over one source of {sizes.changes:,} rows an epoch, each with {PARALLELISM} subtasks and\n"
        "its own state table.",
    )


def subtasks(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    simulated = {width: _simulated(Simulated(folder / f"{width}", parallelism=width), sizes) for width in sizes.widths}
    return _figure(
        "subtasks",
        simulated,
        _with_spark(folder / "spark", sizes, lambda width: (1, width)),
        f"One aggregate over {sizes.changes:,} rows an epoch, with all subtasks on the cores of this machine.",
    )


def _figure(what: str, simulated: dict[int, list[EpochCost]], spark: dict[int, float], how: str) -> Figure:
    found = {width: median_of(costs) for width, costs in simulated.items()}
    return Figure(
        f"scale-{what}",
        f"By {what}",
        what,
        True,
        [
            Panel("epoch with Spark, ms", {"median": [(float(width), each * 1e3) for width, each in spark.items()]}),
            Panel(
                "Epochal's part, ms",
                {
                    "driver": [(float(width), driver) for width, (driver, _, _) in found.items()],
                    "slowest task": [(float(width), task) for width, (_, task, _) in found.items()],
                },
            ),
            Panel("manifest, kB", {"of an epoch": [(float(width), size) for width, (_, _, size) in found.items()]}),
        ],
        f"{how} Epochal's part was measured without Spark.",
    )


def _simulated(simulated: Simulated, sizes: Sizes) -> list[EpochCost]:
    with simulated.attempt() as timed:
        costs = [timed.epoch(np.arange(sizes.changes)) for _ in range(COLD_EPOCHS + sizes.epochs)]
    shutil.rmtree(simulated.folder)
    return costs[COLD_EPOCHS:]


def _with_spark(folder: Path, sizes: Sizes, shape: Callable[[int], tuple[int, int]]) -> dict[int, float]:
    """Seconds of an epoch by width. ``shape`` returns the numbers of operators and subtasks."""
    epochs = COLD_EPOCHS + sizes.epochs
    rows = inputs.write_files(folder / "input", epochs, sizes.changes, sizes.changes)
    found = {}
    with engine.engine_session(engine.configuration(folder)) as spark:
        for width in sizes.widths:
            operators, parallelism = shape(width)
            settings = engine.configuration(folder, parallelism=parallelism)
            times = engine.run_epochs(_pipeline(rows, operators), spark, folder / str(width), settings, epochs)
            found[width] = engine.warm(times, COLD_EPOCHS)
    return found


def _pipeline(folder: Path, operators: int) -> Pipeline:
    pipeline = Pipeline("benchmark")
    source = files.source(str(folder), format="parquet", schema=inputs.SCHEMA, max_files=1)
    keyed = pipeline.read("rows", source).key_by("key")
    for number in range(operators):
        keyed.aggregate(f"counts_{number}", rows="count(*)", total="sum(value)")
    return pipeline
