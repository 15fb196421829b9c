"""``make bench-nexmark-flink``: Nexmark's queries in Epochal, Flink and Structured Streaming, over the same JSON files.

python -m benchmarks.flink                                     all; writes their section of RESULTS.md
python -m benchmarks.flink q1 q5 --events 20000 --rounds 1     some, printed only
python -m benchmarks.flink --resume build/benchmarks/flink-..  the queries that a stopped run has not measured

Each round runs a query in Epochal, in Flink with RocksDB and with state on the heap, and in Structured Streaming with
RocksDB, one after the other. Flink's checkpoints have the interval of Epochal's epochs in the same round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks import charts, structured_streaming
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
from benchmarks.machine import describe
from benchmarks.nexmark import ours, theirs, warm_rate, write_events
from benchmarks.nexmark_page import OURS, WARM
from benchmarks.nexmark_page import ROCKSDB as STREAMING
from benchmarks.nexmark_results import Measured, Run, begin, new_file, printed, resume
from benchmarks.nexmark_streaming import QUERIES as STREAMED
from benchmarks.report import write_block, write_section

LEAST_CHECKPOINT_SECONDS = 0.5
LIMIT_SECONDS = 7_200.0
"""Timeout for all rounds of one query."""
REASON_CHARACTERS = 300

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flink", description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"some of {', '.join(QUERIES)}; default: all")
    parser.add_argument("--events", type=int, default=EVENTS, help="an epoch")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"epochs of a run; the first {WARM} are not counted")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="continue the run whose results are in this file")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md with what was measured")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # the folder of a process that runs one query
    options = parser.parse_args()
    if unknown := set(options.queries) - set(QUERIES):
        parser.error(f"unknown query {', '.join(sorted(unknown))}; known queries: {', '.join(QUERIES)}")
    if options.epochs <= WARM:
        parser.error(f"--epochs must be above {WARM}")
    if options.alone:
        _run_alone(options.queries[0], Path(options.alone), options)
        return 0
    if (reason := runner.missing()) and not options.write:
        parser.error(reason)
    parameters = {**{name: getattr(options, name) for name in ("events", "epochs", "rounds")}, "warm": WARM}
    try:
        run = resume(options.resume, parameters) if options.resume else None
    except (OSError, ValueError) as error:
        parser.error(f"--resume: {error}")
    run = run or begin(new_file("flink"), parameters, describe())
    missing = [query for query in options.queries or QUERIES if query not in run.measured]
    if missing and not options.write:
        console.print(f"[dim]results are kept in {run.file}")
        _measure(run, missing, options)
    measured = run.among(QUERIES)
    console.print(printed(HEADER, map(cells, measured)))
    if options.write or len(measured) == len(QUERIES):
        write_section("bench-nexmark-flink", section(run, runner.VERSION, runner.described(), _draw(run)))
        write_block(COMPARISON, BLOCK, compared(run))
    return 0 if all(query in run.measured for query in options.queries or QUERIES) else 1


def _measure(run: Run, queries: list[str], options: argparse.Namespace) -> None:
    """Measure the queries, and print and keep the result of each as it comes."""
    folder = Path(tempfile.mkdtemp(prefix="epochal-bench-flink-"))
    try:
        write_events(folder / "input", options.events, options.epochs, "json")
        runner.write_input(folder / "input", folder / "joined")
        for query in queries:
            found = _run_in_process(query, folder, options)
            if found is not None:
                run.add(found)
                console.print(printed(HEADER, [cells(found)]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_alone(query: str, folder: Path, options: argparse.Namespace) -> None:
    found = measure(query, folder, options.events, options.epochs, options.rounds)
    (folder / "measured.json").write_text(json.dumps(asdict(found)))


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


def _run_in_process(query: str, folder: Path, options: argparse.Namespace) -> Measured | None:
    """Run a query with a new JVM for Spark, so that earlier queries do not warm it up. Flink always has a new one."""
    numbers = [f"--{name}={getattr(options, name)}" for name in ("events", "epochs", "rounds")]
    command = [sys.executable, "-m", "benchmarks.flink", query, *numbers, "--alone", str(folder)]
    log, started = folder / f"{query}.log", time.monotonic()
    with log.open("wb") as output, console.status(f"[dim]{query}"):
        try:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if code:
        console.print(f"[red]{query} failed after {time.monotonic() - started:.0f} s[/]")
        console.print(log.read_text(errors="replace")[-3000:], markup=False)
        return None
    console.print(f"{query} [dim]{time.monotonic() - started:.0f} s")
    return Measured(**json.loads((folder / "measured.json").read_text()))


def _draw(run: Run) -> str:
    measured = run.among(QUERIES)
    chart = charts.bar_chart(
        CHART,
        f"Nexmark from JSON, {run.parameters['events']:,} events an epoch",
        "events/s",
        [each.query for each in measured],
        {name: [each.rate(name) for each in measured] for name in (OURS, ROCKSDB, HEAP, STREAMING)},
    )
    return f"charts/{chart.name}"


if __name__ == "__main__":
    sys.exit(main())
