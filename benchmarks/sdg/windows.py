"""Word count by size of window (figure 8 of the paper). Each window is an epoch, the unit of state updates.

Lines have a constant rate by event time. They are prepared in one file for each window, so that epochs run without
waiting. A window size is sustained if an epoch takes less time than the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import engine
from benchmarks.engine import EpochTime
from benchmarks.figure import Figure, Panel
from benchmarks.result import percentile
from epochal import Pipeline
from epochal.connectors import files
from examples.sdg.word_count import WordCount

WORDS, WORDS_OF_A_LINE = 10_000, 10
COLD_EPOCHS = 3


@dataclass(frozen=True)
class Sizes:
    """``windows`` in milliseconds; ``rate`` in lines a second; ``epochs``: the first three are not counted."""

    windows: tuple[int, ...]
    rate: int
    epochs: int


FULL = Sizes((100, 1_000, 10_000), 2_000, 13)
QUICK = Sizes((100, 1_000), 100, 5)


def windows(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    found = {window: measure(folder / str(window), window, sizes) for window in sizes.windows}
    seconds = {window: [epoch.seconds for epoch in epochs] for window, epochs in found.items()}
    rates = [
        (float(window), median(epoch.rows for epoch in epochs) / median(seconds[window]))
        for window, epochs in found.items()
    ]
    arriving = [(float(window), float(sizes.rate)) for window in sizes.windows]
    latency = {
        "median": [(float(window), median(each) * 1000) for window, each in seconds.items()],
        "95th percentile": [(float(window), percentile(each, 0.95) * 1000) for window, each in seconds.items()],
    }
    return Figure(
        "sdg-windows",
        "Word count: size of the window",
        "window, ms",
        True,
        [Panel("lines/s", {"processed": rates, "by their time": arriving}), Panel("time of an epoch, ms", latency)],
        f"The class of `examples/sdg/word_count.py`, each window is an epoch: {sizes.rate:,} lines a second\n"
        f"of event time, each with {WORDS_OF_A_LINE} of {WORDS:,} words. A window is sustained if more lines are\n"
        "processed than arrive.",
    )


def measure(folder: Path, window: int, sizes: Sizes) -> Sequence[EpochTime]:
    """Counted epochs. Raises ``RuntimeError`` if an epoch has not read the lines of exactly one window."""
    lines = sizes.rate * window // 1000
    random = np.random.default_rng(window)
    (folder / "lines").mkdir(parents=True)
    for number in range(sizes.epochs):
        words = random.zipf(1.3, (lines, WORDS_OF_A_LINE)) % WORDS
        texts = [" ".join(f"word{word}" for word in row) for row in words]
        times = (number * lines + np.arange(lines, dtype=np.int64)) * window // lines
        pq.write_table(pa.table({"line": texts, "at": times}), folder / "lines" / f"{number:05}.parquet")
    settings = engine.configuration(folder)
    with engine.engine_session(settings) as spark:
        epochs = engine.run_epochs(pipeline(folder, window), spark, folder, settings, sizes.epochs)
    if wrong := [epoch.rows for epoch in epochs if epoch.rows != lines]:
        raise RuntimeError(f"epochs have read {wrong} lines instead of the {lines} of a window each")
    return epochs[COLD_EPOCHS:]


def pipeline(folder: Path, window: int) -> Pipeline:
    """Pipeline of the example's class with windows of ``window`` milliseconds that reads one file in an epoch."""
    pipeline = Pipeline("word-count")
    words = pipeline.program(WordCount)
    columns = "line string, at bigint"
    source = files.source(str(folder / "lines"), format="parquet", schema=columns, max_files=1)
    lines = pipeline.read("lines", source).with_columns(window=f"CAST({window} AS BIGINT)")
    words.feed("add_line", lines, order_by="at")
    return pipeline
