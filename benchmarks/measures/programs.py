"""Programs translated from a class, each alternating with a pipeline written by hand.

Both read the same files in one session, one after the other: the key/value store of ``examples/sdg`` and a
``process()`` for all calls of a key; the word count and ``explode(split(..))`` before a ``process()`` that counts. A
ratio is of one turn; the first turn, in which the JVM warms up, is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import engine
from benchmarks.result import Result, in_turns, number
from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import console, files
from epochal.pipeline.stream import Stream
from examples.sdg.key_value_store import KeyValueStore
from examples.sdg.word_count import WordCount

TURNS, EPOCHS, COLD = 2, 4, 2
"""Epochs of each turn, the first two of which are not counted, because an attempt begins cold."""
MOST = 1.5
CALLS, KEYS, VALUE = 200_000, 200_000, "v" * 90
LINES, WORDS, WORDS_OF_A_LINE = 20_000, 10_000, 10
LINE_COLUMNS, WINDOW_MILLISECONDS = "line string, at long", 1000

Build = Callable[[Path], Pipeline]


class Store(KeyedProcess):
    """Executes ``put`` and ``get`` of a key in the order of the calls."""

    stored = ValueState("value string")
    output = "key string, at long, value string"
    order_by = "at"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        before = value = self.stored.get()
        for row in rows:
            if row.read:
                yield key.key, row.at, value
            else:
                value = row.value
        if value is not before:
            self.stored.set(value)


class Count(KeyedProcess):
    """Counts a word in a window."""

    counted = ValueState("times long")
    output = "word string"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> None:
        self.counted.set((self.counted.get() or 0) + len(rows))


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    calls, lines = folder / "calls", folder / "lines"
    for epoch in range((turns + 1) * EPOCHS):
        _write_calls(calls, epoch)
        _write_lines(lines, epoch)
    half = f"{CALLS:,} calls an epoch, half of which read, over {KEYS:,} keys"
    text = f"{LINES:,} lines an epoch, of {WORDS_OF_A_LINE} words each"
    with engine.engine_session(engine.configuration(folder)) as spark:
        compared = partial(_compared, spark, folder, turns)
        return [
            *compared("key/value store", half, calls, _store_by_hand, _store),
            *compared("word count", text, lines, _words_by_hand, _words),
        ]


def _compared(
    spark: SparkSession, folder: Path, turns: int, name: str, how: str, source: Path, by_hand: Build, program: Build
) -> Iterator[Result]:
    """Seconds of the median epoch and ratio by turn; the order of the sides alternates."""
    settings = engine.configuration(folder)
    seconds: dict[Build, list[float]] = {by_hand: [], program: []}
    for turn in range(turns + 1):
        for build in (by_hand, program)[:: -1 if turn % 2 else 1]:
            times = engine.run_epochs(build(source), spark, folder / build.__name__, settings, EPOCHS)
            seconds[build].append(median(epoch.seconds for epoch in times[COLD:]))
    first, second = (found[1:] for found in seconds.values())
    how_compared = f"{how}; by hand {median(first):.2f} s"
    yield number(f"{name}, translated from a class: an epoch", median(second), "s", how_compared)
    yield in_turns(f"{name}, translated from a class / by hand", second, first, most=MOST)


def _store(source: Path) -> Pipeline:
    pipeline = Pipeline("benchmark")
    store = pipeline.program(KeyValueStore)
    for name, rows in _calls(pipeline, source).items():
        store.feed(name, rows, order_by="at", keep=("key", "at"))
    store.results("get").write("answers", console.sink(rows=1))
    return pipeline


def _store_by_hand(source: Path) -> Pipeline:
    pipeline = Pipeline("benchmark")
    calls = _calls(pipeline, source)
    reads = calls["get"].select("at", "key", "CAST(NULL AS STRING) AS value", "true AS read")
    all_calls = calls["put"].select("at", "key", "value", "false AS read").union(reads)
    all_calls.key_by("key").process(Store).write("answers", console.sink(rows=1))
    return pipeline


def _calls(pipeline: Pipeline, source: Path) -> dict[str, Stream]:
    columns = {"put": "at long, key string, value string", "get": "at long, key string"}
    return {
        name: pipeline.read(name, files.source(str(source / name), format="parquet", schema=schema, max_files=1))
        for name, schema in columns.items()
    }


def _words(source: Path) -> Pipeline:
    pipeline = Pipeline("benchmark")
    lines = _lines(pipeline, source).with_columns(window=f"CAST({WINDOW_MILLISECONDS} AS BIGINT)")
    pipeline.program(WordCount).feed("add_line", lines, order_by="at")
    return pipeline


def _words_by_hand(source: Path) -> Pipeline:
    pipeline = Pipeline("benchmark")
    start = f"at - at % {WINDOW_MILLISECONDS} AS start"
    words = _lines(pipeline, source).select(r"explode(split(lower(line), '\\s+')) AS word", start)
    words.key_by("start", "word").process(Count)
    return pipeline


def _lines(pipeline: Pipeline, source: Path) -> Stream:
    rows = files.source(str(source), format="parquet", schema=LINE_COLUMNS, max_files=1)
    return pipeline.read("lines", rows)


def _write_calls(folder: Path, epoch: int) -> None:
    """Write alternating puts and gets of uniformly distributed keys."""
    names = pa.array([f"key-{key}" for key in np.random.default_rng(epoch).integers(0, KEYS, CALLS)])
    at = pa.array(np.arange(CALLS, dtype=np.int64) + epoch * CALLS)
    for remainder, name in enumerate(("put", "get")):
        which = pa.array(np.arange(remainder, CALLS, 2))
        columns = {"at": at.take(which), "key": names.take(which)}
        if name == "put":
            columns["value"] = pa.array([f"{each} {VALUE}" for each in columns["at"].to_pylist()])
        _write(folder / name, epoch, columns)


def _write_lines(folder: Path, epoch: int) -> None:
    """Write the lines of one second; few words make up most of the text."""
    words = np.random.default_rng(epoch).zipf(1.3, (LINES, WORDS_OF_A_LINE)) % WORDS
    at = epoch * WINDOW_MILLISECONDS + np.arange(LINES, dtype=np.int64) * WINDOW_MILLISECONDS // LINES
    _write(
        folder,
        epoch,
        {"line": pa.array([" ".join(f"word{word}" for word in line) for line in words]), "at": pa.array(at)},
    )


def _write(folder: Path, epoch: int, columns: dict[str, pa.Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{epoch:04}.parquet")
