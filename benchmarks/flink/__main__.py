"""``make bench-nexmark-flink``: Nexmark's queries in Epochal, Flink and Structured Streaming, over the same JSON files.

python -m benchmarks.flink                                     all; writes their section of RESULTS.md
python -m benchmarks.flink q1 q5 --events 20000 --rounds 1     some, printed only
python -m benchmarks.flink --resume build/benchmarks/flink-..  the queries that a stopped run has not measured

Each round runs a query in Epochal, in Flink with RocksDB and with state on the heap, and in Structured Streaming with
RocksDB, one after the other. Flink's checkpoints have the interval of Epochal's epochs in the same round.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import structured_streaming
from benchmarks.flink import runner
from benchmarks.flink.page import (
    BLOCK,
    CHART,
    COMPARISON,
    EPOCHS,
    EVENTS,
    HEADER,
    HEAP,
    QUERIES,
    ROCKSDB,
    ROUNDS,
    cells,
    compared,
    section,
)
from benchmarks.nexmark import ours, theirs, warm_rate, write_events
from benchmarks.nexmark_command import Benchmark, drawn
from benchmarks.nexmark_page import OURS, WARM
from benchmarks.nexmark_page import ROCKSDB as STREAMING
from benchmarks.nexmark_results import Measured, Run
from benchmarks.nexmark_streaming import QUERIES as STREAMED
from benchmarks.report import write_block, write_section

LEAST_CHECKPOINT_SECONDS = 0.5
LIMIT_SECONDS = 7_200.0
"""Timeout for all rounds of one query."""
REASON_CHARACTERS = 300


def measure(query: str, folder: Path, events: int, epochs: int, rounds: int) -> Measured:
    """Run all rounds of one query over the files below ``folder``. An engine that fails once is not run again."""
    rates: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    interval = 1.0

    def in_epochal(work: Path) -> float:
        nonlocal interval
        seconds = ours(query, folder / "input", epochs, work, "json")
        interval = max(LEAST_CHECKPOINT_SECONDS, median(seconds[WARM:epochs]))
        return warm_rate(seconds, events, epochs)

    def in_flink(state: str, work: Path) -> float:
        progress = runner.run(query, folder / "joined", state, interval, work)
        return progress.rate(WARM * events, epochs * events)

    def in_streaming(work: Path) -> float:
        seconds = theirs(query, folder / "input", structured_streaming.ROCKSDB, work, "json")
        return warm_rate(seconds, events, epochs)

    engines: dict[str, Callable[[Path], float]] = {
        OURS: in_epochal,
        ROCKSDB: partial(in_flink, runner.ROCKSDB),
        HEAP: partial(in_flink, runner.HEAP),
    }
    if query in STREAMED:
        engines[STREAMING] = in_streaming
    for number in range(rounds):
        for name, rate in engines.items():
            work = folder / f"{query}-{number}"
            if name in failures:
                continue
            try:
                rates.setdefault(name, []).append(rate(work))
            except RuntimeError as error:
                print(error, flush=True)
                failures[name] = " ".join(str(error).split())[-REASON_CHARACTERS:]
            shutil.rmtree(work, ignore_errors=True)
    return Measured(query, rates, failures)


def _write_input(folder: Path, events: int, epochs: int) -> None:
    write_events(folder / "input", events, epochs, "json")
    runner.write_input(folder / "input", folder / "joined")


def _write(run: Run) -> None:
    chart = drawn(run, QUERIES, CHART, "Nexmark from JSON", (OURS, ROCKSDB, HEAP, STREAMING))
    write_section("bench-nexmark-flink", section(run, runner.VERSION, runner.described(), chart))
    write_block(COMPARISON, BLOCK, compared(run))


BENCHMARK = Benchmark(
    module="benchmarks.flink",
    name="flink",
    description=(__doc__ or "").splitlines()[0],
    queries=QUERIES,
    events=EVENTS,
    epochs=EPOCHS,
    rounds=ROUNDS,
    header=HEADER,
    cells=cells,
    write_input=_write_input,
    measure=measure,
    write=_write,
    limit_seconds=LIMIT_SECONDS,
    missing=runner.missing,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
