"""``make bench-nexmark``: Nexmark's queries in Epochal and in Structured Streaming, over the same files.

python -m benchmarks.nexmark                                         all; writes their section of RESULTS.md
python -m benchmarks.nexmark q1 q18 --events 20000 --rounds 1        some, printed only

Each round runs a query in Epochal, in Structured Streaming with RocksDB and, in the first round only, in Structured
Streaming with state in memory, one after the other, each with its own session and state. All write their rows to
Parquet files, atomically for each epoch or micro-batch. A sink that drops rows would not be a fair comparison, because
Structured Streaming's rows would never leave the JVM, while Epochal's sinks are in Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

import examples.nexmark
from benchmarks import charts, engine, structured_streaming
from benchmarks.descriptions import NEXMARK, baselines_described
from benchmarks.machine import describe
from benchmarks.nexmark_streaming import CANNOT, QUERIES, answer_seconds, events
from benchmarks.report import write_section
from benchmarks.sessions import session
from epochal.connectors import files, nexmark
from epochal.connectors.nexmark.source import NexmarkSource
from epochal.pipeline.definitions import SourceDefinition

MEASURED = ("q1", "q2", "q4", "q5", "q7", "q8", "q9", "q11", "q16", "q18", "q20")
EVENTS, EPOCHS, ROUNDS = 1_000_000, 20, 2
WARM = 10
"""Number of first epochs of a run that are not counted, because the JVM warms up."""
FILES_AN_EPOCH = 2
"""One for each core."""
LIMIT_SECONDS = 2_400.0
"""Timeout for one query in the default number of rounds."""
OURS, ROCKSDB, IN_MEMORY = "Epochal", "Structured Streaming, RocksDB", "Structured Streaming, in memory"
AT_LEAST, MEDIAN_AT_LEAST = 1.0, 2.0
"""Minimum speed relative to Structured Streaming with RocksDB: of each query, and of their median."""
CHART = "nexmark"

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Measured:
    """Events a second of one query, by engine, in each round."""

    query: str
    rates: Mapping[str, Sequence[float]]

    @property
    def ratios(self) -> list[float]:
        """Speed relative to Structured Streaming with RocksDB in each round."""
        return [ours / theirs for ours, theirs in zip(self.rates[OURS], self.rates.get(ROCKSDB, ()), strict=False)]

    def rate(self, engine: str) -> float:
        return median(self.rates[engine]) if engine in self.rates else nan


class Parameters(nexmark.Parameters):
    """Parameters of the queries, with the files that all engines read as source."""

    folder: str
    schema_text: str

    def source(self) -> SourceDefinition:
        return files.source(self.folder, format="parquet", schema=self.schema_text, max_files=FILES_AN_EPOCH)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"some of {', '.join(MEASURED)}; default: all")
    parser.add_argument("--events", type=int, default=EVENTS, help="an epoch")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"epochs of a run; the first {WARM} are not counted")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # the folder of a process that runs one query
    options = parser.parse_args()
    if unknown := set(options.queries) - set(MEASURED):
        parser.error(f"unknown query {', '.join(sorted(unknown))}; known queries: {', '.join(MEASURED)}")
    if options.epochs <= WARM:
        parser.error(f"--epochs must be above {WARM}")
    if options.alone:
        _run_alone(options.queries[0], Path(options.alone), options)
        return 0
    machine = describe()
    chosen = options.queries or MEASURED
    available = [query for query in chosen if has_pipeline(query)]
    folder = Path(tempfile.mkdtemp(prefix="epochal-bench-nexmark-"))
    try:
        write_events(folder / "input", options.events, options.epochs)
        results = [found for query in available if (found := _run_in_process(query, folder, options)) is not None]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(_table(results))
    if len(results) < len(available):
        return 1
    if not options.queries:
        chart = charts.bar_chart(
            CHART,
            f"Nexmark, {options.events:,} events an epoch",
            "events/s",
            [each.query for each in results],
            {name: [each.rate(name) for each in results] for name in (OURS, ROCKSDB, IN_MEMORY)},
        )
        missing = [query for query in MEASURED if query not in available]
        write_section("bench-nexmark", _markdown(results, missing, machine, options, f"charts/{chart.name}"))
    return 0


def _run_alone(query: str, folder: Path, options: argparse.Namespace) -> None:
    measured = run(query, folder, options.events, options.epochs, options.rounds)
    (folder / "measured.json").write_text(json.dumps(asdict(measured)))


def has_pipeline(query: str) -> bool:
    return (Path(examples.nexmark.__file__).parent / f"{query}.py").exists()


def write_events(folder: Path, events: int, epochs: int) -> None:
    """Write ``epochs`` times ``FILES_AN_EPOCH`` files to ``folder``, in the order of their times."""
    folder.mkdir(parents=True)
    source = nexmark.source(events=events * epochs).make()
    assert isinstance(source, NexmarkSource)
    share = events // FILES_AN_EPOCH
    with session(folder.parent / "writing") as spark:
        for number in range(epochs * FILES_AN_EPOCH):
            written = folder.parent / "writing" / f"part-{number}"
            source.rows(spark, number * share, (number + 1) * share).coalesce(1).write.parquet(str(written))
            (part,) = written.glob("*.parquet")
            file = part.rename(folder / f"{number:05}.parquet")
            os.utime(file, (number, number))  # both engines read the oldest file first


def run(query: str, folder: Path, events_an_epoch: int, epochs: int, rounds: int) -> Measured:
    """Run all rounds of one query over the files in ``folder``."""
    engines: dict[str, Callable[[Path], list[float]]] = {OURS: partial(_ours, query, folder / "input", epochs)}
    if query in QUERIES:
        engines[ROCKSDB] = partial(_theirs, query, folder / "input", structured_streaming.ROCKSDB)
        engines[IN_MEMORY] = partial(_theirs, query, folder / "input", structured_streaming.IN_MEMORY)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds):
        for name, seconds in engines.items():
            if name == IN_MEMORY and number:
                continue
            work = folder / f"{query}-{number}"
            rates[name].append(events_an_epoch / median(seconds(work)[WARM:epochs]))
            shutil.rmtree(work)
    return Measured(query, rates)


def _ours(query: str, source: Path, epochs: int, work: Path) -> list[float]:
    parameters = Parameters(folder=str(source), schema_text=schema_text(), output=str(work / "output"))
    settings = engine.configuration(work)
    with engine.engine_session(settings) as spark:
        pipeline = import_module(f"examples.nexmark.{query}").build(parameters)
        return [each.seconds for each in engine.run_epochs(pipeline, spark, work, settings, epochs)]


def _theirs(query: str, source: Path, state: Mapping[str, str], work: Path) -> list[float]:
    with session(work, state) as spark:
        return answer_seconds(events(spark, source, schema(), FILES_AN_EPOCH), query, work)


def _run_in_process(query: str, folder: Path, options: argparse.Namespace) -> Measured | None:
    """Run a query in a new JVM, so that earlier queries do not warm it up."""
    numbers = [f"--{name}={getattr(options, name)}" for name in ("events", "epochs", "rounds")]
    command = [sys.executable, "-m", "benchmarks.nexmark", query, *numbers, "--alone", str(folder)]
    started, limit = time.monotonic(), LIMIT_SECONDS * max(1, options.rounds / ROUNDS)
    with (folder / f"{query}.log").open("wb") as log, console.status(f"[dim]{query}"):
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.terminate()
            process.wait()
    if code != 0:
        console.print(f"[red]{query} {'failed' if code else f'took longer than {limit:.0f} s'}[/]")
        console.print((folder / f"{query}.log").read_text(errors="replace")[-3000:], markup=False)
        return None
    console.print(f"{query} [dim]{time.monotonic() - started:.0f} s")
    measured: dict[str, Any] = json.loads((folder / "measured.json").read_text())
    return Measured(**measured)


def schema() -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    from epochal.connectors.nexmark.model import SCHEMA

    return from_arrow_schema(SCHEMA)


def schema_text() -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema())


def _table(results: Sequence[Measured]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for number, name in enumerate(_HEADER):
        table.add_column(name, justify="right" if number else "left")
    for each in results:
        table.add_row(*_cells(each))
    return table


_HEADER = ("query", "Epochal", "RocksDB", "in memory", "times RocksDB, least", "greatest")


def _cells(found: Measured) -> tuple[str, ...]:
    rates = (f"{found.rate(name):,.0f}" if name in found.rates else "" for name in (OURS, ROCKSDB, IN_MEMORY))
    bounds = (f"{bound(found.ratios):.2f}" if found.ratios else "" for bound in (min, max))
    return (found.query, *rates, *bounds)


def _markdown(
    results: Sequence[Measured],
    missing: Sequence[str],
    described: Mapping[str, str],
    options: argparse.Namespace,
    chart: str,
) -> str:
    rows = "\n".join(f"| {' | '.join(_cells(each))} |" for each in results)
    compared = [ratio for each in results for ratio in [min(each.ratios, default=nan)] if ratio == ratio]
    slower = [each.query for each in results if each.ratios and min(each.ratios) < AT_LEAST]
    reached = {True: "reached", False: "**not reached**"}
    middle = median(compared) if compared else nan
    high = middle >= MEDIAN_AT_LEAST
    verdicts = [
        f"- no query slower than Structured Streaming with RocksDB: {reached[not slower]} {' '.join(slower)}".rstrip(),
        f"- median of the queries' least ratios, at least {MEDIAN_AT_LEAST:g}: {middle:.2f}, {reached[high]}",
    ]
    reasons = [f"- {query}: {CANNOT[query]}" for query in MEASURED if query in CANNOT]
    reasons += [f"- {query} has no pipeline yet" for query in missing]
    machine = "\n".join(f"| {name} | {value} |" for name, value in described.items())
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return f"""## Nexmark

Written by `make bench-nexmark` on {today}. Events a second, with {options.events:,} in each
of the {options.epochs} epochs or micro-batches of a run: the median of those after the first {WARM}, and of
{options.rounds} rounds, in which the engines alternate; with state in memory in one round. Each ratio is of one round.
All write their output to Parquet files, atomically for each epoch or micro-batch.

| {" | ".join(_HEADER)} |
|---|{"---:|" * (len(_HEADER) - 1)}
{rows}

{chr(10).join(verdicts)}

![Events a second by query and engine]({chart})

Structured Streaming cannot express all of them:

{chr(10).join(reasons)}

{baselines_described(NEXMARK, today)}

| | |
|---|---|
{machine}"""


if __name__ == "__main__":
    sys.exit(main())
