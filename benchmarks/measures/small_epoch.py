"""How soon a small epoch is decided: one operator, one sink, warm, from the trigger to prepared."""

from __future__ import annotations

from pathlib import Path

from benchmarks import engine, inputs, pipelines
from benchmarks.result import Result, at_most, number, percentile

EPOCHS, ROWS, KEYS, WARM = 60, 1_000, 500, 20


def run(folder: Path) -> list[Result]:
    source = inputs.write_files(folder / "input", EPOCHS, ROWS, KEYS)
    settings = engine.configuration(folder / "epochal")
    with engine.engine_session(settings) as spark:
        pipeline = pipelines.aggregate_to_files(source, folder / "output")
        times = engine.run_epochs(pipeline, spark, folder / "epochal", settings, EPOCHS)
    milliseconds = [time.seconds * 1000 for time in times[WARM:]]
    how = f"{ROWS:,} rows an epoch, state and files sink; the last {EPOCHS - WARM} of {EPOCHS}, trigger to prepared"
    return [
        at_most("small epoch, p50", percentile(milliseconds, 0.5), 200, "ms", how, digits=0),
        number("small epoch, p99", percentile(milliseconds, 0.99), "ms", digits=0),
    ]
