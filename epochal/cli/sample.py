"""One epoch over the first rows of each source, in memory: what it writes and keeps, and nothing else is touched."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text
from watchfiles import watch

from epochal.cli import formatting
from epochal.cli.failures import sentence, unexpected
from epochal.cli.formatting import Column, Listing
from epochal.cli.local_run import authors_errors
from epochal.cli.output import Output
from epochal.contracts.configuration import Configuration, Parameters
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.errors import EpochalError
from epochal.pipeline.artifact import load
from epochal.pipeline.graph import Graph
from epochal.state.table import StateTable
from epochal.testing.harness import Harness

WAIT_SECONDS = 3.0
"""So long rows may take to come: a generator's fall due at its rate, those of a table have to settle."""


LOOK_SECONDS = 1.0
"""So often the file is looked at, whatever the system says: some file systems say nothing."""


_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class Sample:
    """Rows by sink and by state table; ``waited_for``: sources that had none."""

    outputs: Mapping[str, pa.Table]
    states: Mapping[str, pa.Table]
    waited_for: tuple[str, ...]


def take_sample(graph: Graph, rows: int, spark: SparkSession, configuration: Configuration) -> Sample:
    """At most ``rows`` of each source. Raises what the pipeline, a source or the epoch is wrong with."""
    with Harness(graph, spark, configuration) as harness:
        inputs: dict[str, Any] = {}
        without = []
        for node in graph.sources:
            source = node.make()
            source.restore(None, [])
            if (slice := _first(source, SliceLimits(rows))) is None:
                without.append(node.name)
            else:
                inputs[node.name] = source.read(harness.spark, slice).limit(rows)
        with _aborts_are_raised():
            outputs = harness.epoch(**inputs)
        states = {table.id: _as_shown(table, harness.state(table.id)) for table in harness.state_tables}
        return Sample(outputs, states, tuple(without))


@contextmanager
def _aborts_are_raised() -> Iterator[None]:
    """An epoch that is aborted is this call's own error, and need not be a warning, too."""
    logger = logging.getLogger("epochal.engine.coordinator")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def sample_view(sample: Sample, rows: int) -> RenderableType:
    parts: list[RenderableType] = []
    for kind, tables in (("sink", sample.outputs), ("state table", sample.states)):
        for name, table in tables.items():
            parts += [Text.assemble((kind, "dim"), " ", (name, "bold"), f"  {formatting.count(table.num_rows)} rows")]
            parts += [_rows(table.slice(0, rows)), Text()] if table.num_rows else [Text()]
    parts += [Text(f"Source {name} has no rows now.", style="yellow") for name in sample.waited_for]
    return Group(*parts)


def _as_shown(table: StateTable, rows: pa.Table) -> pa.Table:
    visible = rows.drop_columns([name for name in rows.column_names if name in table.partials | table.hidden])
    for column in table.shown:
        visible = visible.append_column(column.name, column.over(rows))
    return visible


def _first(source: Source, limits: SliceLimits) -> Slice | None:
    end = time.monotonic() + WAIT_SECONDS
    while (slice := source.plan(limits)) is None and not source.ended and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)
    return slice


def _rows(table: pa.Table) -> Listing:
    numeric = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in table.schema]
    view = Listing(*(Column(name, numeric=right) for name, right in zip(table.column_names, numeric, strict=True)))
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        view.add(*("null" if value is None else str(value) for value in row))
    return view


@dataclass(frozen=True)
class Development:
    """One file, run on a sample of ``sample`` rows of each source; ``rows`` of each result are printed."""

    file: Path
    parameters: Parameters
    rows: int
    sample: int
    spark: SparkSession
    configuration: Configuration
    output: Output

    def run(self) -> bool:
        """Whether it ran. What was wrong is printed, and never raised."""
        began = time.monotonic()
        try:
            with self.output.busy(f"Running {self.file.name} on a sample"), authors_errors():
                taken = self._take()
        except EpochalError as error:
            self._failed(sentence(error), error.slug)
            return False
        except Exception as error:  # noqa: BLE001 the author is about to mend it, and the loop goes on
            self._failed(unexpected(error), EpochalError.slug)
            return False
        self._ran(taken, time.monotonic() - began)
        return True

    def _take(self) -> Sample:
        artifact = load(self.file)
        artifact.ship()
        return take_sample(artifact.graph(self.parameters), self.sample, self.spark, self.configuration)

    def _ran(self, taken: Sample, seconds: float) -> None:
        if self.output.as_json:
            self.output.line(
                {
                    "outputs": {name: table.slice(0, self.rows).to_pylist() for name, table in taken.outputs.items()},
                    "states": {name: table.slice(0, self.rows).to_pylist() for name, table in taken.states.items()},
                    "waited_for": taken.waited_for,
                }
            )
            return
        self.output.results.print(Rule(f"{time.strftime('%H:%M:%S')}, {seconds:.1f} s", style="dim", align="left"))
        self.output.results.print(sample_view(taken, self.rows))

    def _failed(self, text: str, slug: str) -> None:
        if self.output.as_json:
            self.output.line({"error": {"type": slug, "message": text}})
        self.output.notes.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def saved(file: Path) -> Iterator[None]:
    """Once at the beginning, and then each time the file has other contents; none is missed while one is worked on."""
    before: bytes | None = None
    first = True
    folder = file.absolute().parent
    looks = watch(
        folder if folder.is_dir() else Path.cwd(),
        watch_filter=lambda _change, path: Path(path).name == file.name,
        recursive=False,
        debounce=200,
        rust_timeout=int(LOOK_SECONDS * 1000),
        yield_on_timeout=True,
    )
    while True:
        now = _contents(file)
        # While an editor replaces the file it is not there for a moment.
        if first or (now is not None and now != before):
            first, before = False, now
            yield
        else:
            next(looks)


def _contents(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None
