"""Cost of compaction for epochs: the same input on a million keys of state, with and without bases every few epochs.

The two alternate in one session, so that other load of the machine affects both alike. All epochs count, including
those during which bases are written.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from benchmarks import engine, inputs, pipelines
from benchmarks.result import Result, at_most, number

KEYS, TOUCHED = 1_000_000, 50_000
TURNS, EPOCHS_A_TURN, COLD_EPOCHS = 5, 12, 2
EVERY_EPOCHS = 10
"""After this number of epochs half of the bytes have changed, and the default policy would write bases."""


def run(folder: Path) -> list[Result]:
    ways = {
        "with": engine.configuration(folder, compact_after_epochs=EVERY_EPOCHS),
        "without": engine.configuration(folder, compact_after_epochs=100_000, compact_after_bytes=1 << 40),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:
        inputs.write_every_key(folder / f"input-{way}" / "!every-key.parquet", KEYS)
        inputs.write_files(folder / f"input-{way}", TURNS * EPOCHS_A_TURN, TOUCHED, KEYS)
    with engine.engine_session(ways["with"]) as spark:
        for turn in range(TURNS):
            for way, settings in ways.items():
                pipeline = pipelines.aggregate(folder / f"input-{way}")
                times = engine.run_epochs(pipeline, spark, folder / way, settings, EPOCHS_A_TURN)
                if turn > 0:
                    seconds[way] += [time.seconds for time in times[COLD_EPOCHS:]]
    written = len(list((folder / "with" / "store").glob("*/bases/*.parquet")))
    if not written:
        raise RuntimeError("no base was written")
    means = {way: mean(values) * 1000 for way, values in seconds.items()}
    how = f"{TOUCHED:,} rows an epoch on {KEYS:,} keys; mean of {len(seconds['with'])}, alternating"
    return [
        number("epoch with compaction", means["with"], "ms", f"{how}; {written} files of bases", digits=0),
        number("epoch without compaction", means["without"], "ms", how, digits=0),
        at_most("compaction's effect on epoch time", (means["with"] / means["without"] - 1) * 100, 5, "%", digits=1),
    ]
