"""Cost of an epoch by size of state: the same input on 1,000, 100,000 and 1,000,000 keys.

The three sizes alternate in one session, so that other load of the machine affects all alike.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks import engine, inputs, pipelines
from benchmarks.result import Result, at_most, number

SIZES = (1_000, 100_000, 1_000_000)
TURNS, EPOCHS_A_TURN, ROWS, TOUCHED = 4, 5, 10_000, 1_000
COLD_EPOCHS = 2
"""First epochs of each turn that are not counted, because an attempt begins cold."""


def run(folder: Path) -> list[Result]:
    settings = engine.configuration(folder)
    seconds: dict[int, list[float]] = {keys: [] for keys in SIZES}
    for keys in SIZES:
        # The oldest file is the first epoch.
        inputs.write_every_key(folder / f"input-{keys}" / "!every-key.parquet", keys)
        inputs.write_files(folder / f"input-{keys}", TURNS * EPOCHS_A_TURN, ROWS, TOUCHED)
    with engine.engine_session(settings) as spark:
        for turn in range(TURNS):
            for keys in SIZES:
                pipeline = pipelines.aggregate(folder / f"input-{keys}")
                times = engine.run_epochs(pipeline, spark, folder / str(keys), settings, EPOCHS_A_TURN)
                if turn == 0 and times[0].rows != keys:
                    raise RuntimeError(
                        f"the first epoch read {times[0].rows} rows, and not one for each of {keys} keys"
                    )
                if turn > 0:
                    seconds[keys] += [time.seconds for time in times[COLD_EPOCHS:]]
    medians = {keys: median(values) * 1000 for keys, values in seconds.items()}
    how = f"{ROWS:,} rows over {TOUCHED:,} keys an epoch; median of {len(seconds[SIZES[0]])}, alternating sizes"
    spread = max(medians.values()) / min(medians.values())
    return [
        *(number(f"epoch on {keys:,} keys of state", value, "ms", how, digits=0) for keys, value in medians.items()),
        at_most("epoch by size of state: slowest / fastest", spread, 1.5, "times"),
    ]
