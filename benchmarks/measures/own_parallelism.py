"""An operator with most of the work and eight subtasks, beside an operator with little work.

The second one has two subtasks, or eight as the first. Both applications process the same small epochs in alternating
turns: fewer subtasks are fewer tasks, and an operator with a number of its own shuffles its rows once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import engine, inputs
from benchmarks.result import Result, in_turns, number
from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import files

MANY, FEW = 8, 2
ROWS, KEYS, REGIONS = 20_000, 5_000, 16
TURNS, EPOCHS_A_TURN, COLD_EPOCHS = 6, 6, 2


class Heavy(KeyedProcess):
    """Per-row work of an author's function."""

    state = ValueState("rows long, total long")
    output = "region long, total long"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        count, total = self.state.get() or (0, 0)
        for row in rows:
            count, total = count + 1, (total * 31 + row.value) % 1_000_003
        self.state.set(count, total)
        yield key.key % REGIONS, total


def pipeline(folder: Path) -> Pipeline:
    made = Pipeline("benchmark")
    rows = made.read("rows", files.source(str(folder), format="parquet", schema=inputs.SCHEMA, max_files=1))
    heavy = rows.key_by("key").process(Heavy, name="heavy")
    heavy.key_by("region").aggregate("light", keys="count(*)", total="sum(total)")
    return made


def run(folder: Path) -> list[Result]:
    inputs.write_files(folder / "input", TURNS * EPOCHS_A_TURN, ROWS, KEYS)
    settings = {
        "alike": engine.configuration(folder / "alike", parallelism=MANY),
        "own": engine.configuration(folder / "own", parallelism=FEW, parallelisms={"heavy": MANY}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    with engine.engine_session(settings["alike"]) as spark:
        for turn in range(TURNS):
            for name in sorted(settings, reverse=turn % 2 == 1):
                run_folder = folder / name
                times = engine.run_epochs(pipeline(folder / "input"), spark, run_folder, settings[name], EPOCHS_A_TURN)
                if turn > 0:
                    seconds[name].append(median(time.seconds for time in times[COLD_EPOCHS:]))
    how = f"{ROWS:,} rows over {KEYS:,} keys an epoch; medians of {TURNS - 1} turns"
    return [
        number(f"both operators with {MANY} subtasks, epoch", 1000 * median(seconds["alike"]), "ms", how, digits=0),
        number(f"{MANY} subtasks beside {FEW}, epoch", 1000 * median(seconds["own"]), "ms", how, digits=0),
        in_turns(f"{MANY} subtasks beside {FEW} / both with {MANY}", seconds["own"], seconds["alike"]),
    ]
