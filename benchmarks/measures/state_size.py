"""Does an epoch cost more when there is more state? The same input on 1,000, 100,000 and 1,000,000 keys of state."""

from __future__ import annotations

from pathlib import Path

from benchmarks import engine, inputs, pipelines
from benchmarks.result import Result, at_most, number

SIZES = (1_000, 100_000, 1_000_000)
EPOCHS, ROWS, TOUCHED, WARM = 16, 10_000, 1_000, 6


def run(folder: Path) -> list[Result]:
    medians = {}
    for keys in SIZES:
        place = folder / str(keys)
        # The oldest file is the first epoch.
        inputs.write_every_key(place / "input" / "!every-key.parquet", keys)
        source = inputs.write_files(place / "input", EPOCHS, ROWS, TOUCHED)
        settings = engine.configuration(place)
        with engine.engine_session(settings) as spark:
            times = engine.run_epochs(pipelines.aggregate(source), spark, place / "epochal", settings, EPOCHS + 1)
        if times[0].rows != keys:
            raise RuntimeError(
                f"the first epoch read {times[0].rows} rows: it was to bring one for each of {keys} keys"
            )
        medians[keys] = engine.warm(times, WARM) * 1000
    how = f"{ROWS:,} rows over {TOUCHED:,} keys an epoch; median of the last {EPOCHS + 1 - WARM}"
    return [
        *(number(f"epoch on {keys:,} keys of state", value, "ms", how, digits=0) for keys, value in medians.items()),
        at_most("slowest of fastest", max(medians.values()) / min(medians.values()), 1.5, "times"),
    ]
