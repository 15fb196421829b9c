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

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median

from pyspark.sql.types import StructType

from benchmarks import engine, nexmark_batch, structured_streaming
from benchmarks.nexmark_command import Benchmark, drawn
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
from benchmarks.nexmark_results import Measured, Run
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
    return engine.between_begins([each.began for each in times], times[-1].seconds)


def theirs(query: str, source: Path, state: Mapping[str, str], work: Path, format: Format = "parquet") -> list[float]:
    """Seconds from the begin of each micro-batch in Structured Streaming to that of the next one, with the state store
    of these settings."""
    with session(work, state) as spark:
        return answer_seconds(events(spark, source, schema(), FILES_AN_EPOCH, format), query, work, format)


def _limit(query: str, source: Path, work: Path) -> list[float]:
    with session(work) as spark:
        return nexmark_batch.answer_seconds(spark, source, schema(), FILES_AN_EPOCH, query, work)


def schema() -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    from epochal.connectors.nexmark.model import SCHEMA

    return from_arrow_schema(SCHEMA)


def schema_text() -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema())


def _write(run: Run) -> None:
    engines = (OURS, ROCKSDB, IN_MEMORY, LIMIT)
    write_section("bench-nexmark", section(run, drawn(run, MEASURED, CHART, "Nexmark", engines)))


BENCHMARK = Benchmark(
    module="benchmarks.nexmark",
    name="nexmark",
    description=(__doc__ or "").splitlines()[0],
    queries=MEASURED,
    events=EVENTS,
    epochs=EPOCHS,
    rounds=ROUNDS,
    header=HEADER,
    cells=cells,
    write_input=lambda folder, events, epochs: write_events(folder / "input", events, epochs),
    measure=run,
    write=_write,
    limit_seconds=LIMIT_SECONDS,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
