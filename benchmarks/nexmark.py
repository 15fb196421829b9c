"""``make bench-nexmark``: Nexmark's queries in Epochal, Structured Streaming and Spark batches, over the same files.

python -m benchmarks.nexmark                                         all; writes their section of RESULTS.md
python -m benchmarks.nexmark q1 q18 --events 20000 --rounds 1        some, printed only
python -m benchmarks.nexmark --resume build/benchmarks/nexmark-..    the queries that a stopped run has not measured

Each round runs a query in Epochal, in Structured Streaming with RocksDB, as batches without state (the limit) and, in
the first round only, in Structured Streaming with state in memory, one after the other, each with its own session and
state. All write their rows to Parquet files, atomically for each epoch or micro-batch. A sink that drops rows would be
no fair comparison, because Structured Streaming's rows would never leave the JVM, while Epochal's sinks are in Python.
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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql.types import StructType
from rich.console import Console

from benchmarks import charts, engine, nexmark_batch, structured_streaming
from benchmarks.machine import describe
from benchmarks.nexmark_page import (
    CHART,
    EPOCHS,
    EVENTS,
    HEADER,
    IN_MEMORY,
    LIMIT,
    MEASURED,
    OURS,
    ROCKSDB,
    ROUNDS,
    WARM,
    cells,
    section,
)
from benchmarks.nexmark_results import Measured, Run, begin, new_file, printed, resume
from benchmarks.nexmark_streaming import NOT_IN_MEMORY, QUERIES, answer_seconds, events
from benchmarks.report import write_section
from benchmarks.sessions import session
from epochal.connectors import files, nexmark
from epochal.connectors.file_reading import Format
from epochal.connectors.nexmark.source import NexmarkSource
from epochal.connectors.sink_modes import Mode
from epochal.pipeline.definitions import SinkDefinition, SourceDefinition

FILES_AN_EPOCH = 2
"""One for each core."""
LIMIT_SECONDS = 3_600.0
"""Timeout for one query in the default number of rounds."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


class Parameters(nexmark.Parameters):
    """Parameters of the queries, with the files that all engines read as source."""

    folder: str
    schema_text: str
    format: Format = "parquet"

    def source(self) -> SourceDefinition:
        return files.source(self.folder, format=self.format, schema=self.schema_text, max_files=FILES_AN_EPOCH)

    def sink(self, mode: Mode = "append") -> SinkDefinition:
        assert self.output is not None
        return files.sink(self.output, format=self.format, mode=mode)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", metavar="QUERY", help=f"some of {', '.join(MEASURED)}; default: all")
    parser.add_argument("--events", type=int, default=EVENTS, help="an epoch")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"epochs of a run; the first {WARM} are not counted")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--resume", type=Path, metavar="FILE", help="continue the run whose results are in this file")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md without a missing query")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # the folder of a process that runs one query
    options = parser.parse_args()
    if unknown := set(options.queries) - set(MEASURED):
        parser.error(f"unknown query {', '.join(sorted(unknown))}; known queries: {', '.join(MEASURED)}")
    if options.epochs <= WARM:
        parser.error(f"--epochs must be above {WARM}")
    if options.alone:
        _run_alone(options.queries[0], Path(options.alone), options)
        return 0
    parameters = {name: getattr(options, name) for name in ("events", "epochs", "rounds")}
    try:
        run = resume(options.resume, parameters) if options.resume else None
    except (OSError, ValueError) as error:
        parser.error(f"--resume: {error}")
    run = run or begin(new_file("nexmark"), parameters, describe())
    missing = [query for query in options.queries or MEASURED if query not in run.measured]
    if missing and not options.write:
        console.print(f"[dim]results are kept in {run.file}")
        _measure(run, missing, options)
    measured = run.among(MEASURED)
    console.print(printed(HEADER, map(cells, measured)))
    if options.write or len(measured) == len(MEASURED):
        write_section("bench-nexmark", section(run, draw(run)))
    return 0 if all(query in run.measured for query in options.queries or MEASURED) else 1


def _measure(run: Run, queries: list[str], options: argparse.Namespace) -> None:
    """Measure the queries, and print and keep the result of each as it comes."""
    folder = Path(tempfile.mkdtemp(prefix="epochal-bench-nexmark-"))
    try:
        write_events(folder / "input", options.events, options.epochs)
        for query in queries:
            found = _run_in_process(query, folder, options)
            if found is not None:
                run.add(found)
                console.print(printed(HEADER, [cells(found)]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def draw(run: Run) -> str:
    """Draw the chart of a run, and return its path below the folder of RESULTS.md."""
    measured = run.among(MEASURED)
    chart = charts.bar_chart(
        CHART,
        f"Nexmark, {run.parameters['events']:,} events an epoch",
        "events/s",
        [each.query for each in measured],
        {name: [each.rate(name) for each in measured] for name in (OURS, ROCKSDB, IN_MEMORY, LIMIT)},
    )
    return f"charts/{chart.name}"


def _run_alone(query: str, folder: Path, options: argparse.Namespace) -> None:
    measured = run(query, folder, options.events, options.epochs, options.rounds)
    (folder / "measured.json").write_text(json.dumps(asdict(measured)))


def write_events(folder: Path, events: int, epochs: int, format: Format = "parquet") -> None:
    """Write ``epochs`` times ``FILES_AN_EPOCH`` files to ``folder``, in the order of their times."""
    folder.mkdir(parents=True)
    source = nexmark.source(events=events * epochs).make()
    assert isinstance(source, NexmarkSource)
    share = events // FILES_AN_EPOCH
    with session(folder.parent / "writing") as spark:
        for number in range(epochs * FILES_AN_EPOCH):
            written = folder.parent / "writing" / f"part-{number}"
            rows = source.rows(spark, number * share, (number + 1) * share).coalesce(1)
            rows.write.format(format).save(str(written))
            (part,) = written.glob(f"*.{format}")
            file = part.rename(folder / f"{number:05}.{format}")
            os.utime(file, (number, number))  # all engines read the oldest file first
    shutil.rmtree(folder.parent / "writing")


def run(query: str, folder: Path, events_an_epoch: int, epochs: int, rounds: int) -> Measured:
    """Run all rounds of one query over the files in ``folder``."""
    source = folder / "input"
    engines: dict[str, Callable[[Path], list[float]]] = {OURS: partial(ours, query, source, epochs)}
    if query in QUERIES:
        engines[ROCKSDB] = partial(theirs, query, source, structured_streaming.ROCKSDB)
    engines[LIMIT] = partial(_limit, query, source)
    if query in QUERIES and query not in NOT_IN_MEMORY:
        engines[IN_MEMORY] = partial(theirs, query, source, structured_streaming.IN_MEMORY)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds):
        for name, seconds in engines.items():
            if name == IN_MEMORY and number:
                continue
            work = folder / f"{query}-{number}"
            rates[name].append(warm_rate(seconds(work), events_an_epoch, epochs))
            shutil.rmtree(work)
    return Measured(query, rates)


def warm_rate(seconds: list[float], events_an_epoch: int, epochs: int) -> float:
    """Events a second of the median epoch after the first ``WARM``."""
    return events_an_epoch / median(seconds[WARM:epochs])


def ours(query: str, source: Path, epochs: int, work: Path, format: Format = "parquet") -> list[float]:
    """Seconds from the begin of each epoch in Epochal to that of the next one."""
    parameters = Parameters(folder=str(source), schema_text=schema_text(), output=str(work / "output"), format=format)
    settings = engine.configuration(work)
    with engine.engine_session(settings) as spark:
        pipeline = import_module(f"examples.nexmark.{query}").build(parameters)
        times = engine.run_epochs(pipeline, spark, work, settings, epochs)
    begins = [each.began for each in times if each.began is not None]
    return engine.between_begins(begins, times[-1].seconds)


def theirs(query: str, source: Path, state: Mapping[str, str], work: Path, format: Format = "parquet") -> list[float]:
    """Seconds from the begin of each micro-batch in Structured Streaming to that of the next one, with the state store
    of these settings."""
    with session(work, state) as spark:
        return answer_seconds(events(spark, source, schema(), FILES_AN_EPOCH, format), query, work, format)


def _limit(query: str, source: Path, work: Path) -> list[float]:
    with session(work) as spark:
        return nexmark_batch.answer_seconds(spark, source, schema(), FILES_AN_EPOCH, query, work)


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


if __name__ == "__main__":
    sys.exit(main())
