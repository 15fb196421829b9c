"""Epochs of the engine are epoch cuts: traces of real runs, with operators and subtasks as processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import SparkSession

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.contracts.source import Slice
from epochal.errors import EpochAborted
from epochal.snapshots.manifest import Manifest
from epochal.testing import Harness
from tests.kit.cuts.recorder import RecordedRun, Recorder, RowEvent, reads_of
from tests.kit.lives import Life, Step, examples, failing_at, steps, struct

COLUMNS = pa.schema([("number", pa.int64()), ("key", pa.string()), ("other", pa.string())])


class Counted(KeyedProcess):
    count = ValueState("rows bigint")
    output = struct(number="long", key="string", other="string")

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        self.count.set((self.count.get() or 0) + len(rows))
        for row in rows:
            yield row.number, row.key, row.other


def pipeline() -> Pipeline:
    """Two sources, a task over both by one key, another over its output by another, and two sinks."""
    pipeline = Pipeline("recorded")
    columns = {"number": "id", "key": "cast(id % 5 AS string)", "other": "cast(id % 3 AS string)"}
    left = pipeline.read("left", generator.source(columns))
    first = left.union(pipeline.read("right", generator.source(columns))).key_by("key").process(Counted, name="first")
    first.key_by("other").process(Counted, name="second").write("out", console.sink())
    first.write("between", console.sink())
    return pipeline


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"number": n, "key": str(n % 5), "other": str(n % 3)} for n in range(first, first + count)]


def epochs_of(counts: Sequence[tuple[int, int]]) -> list[dict[str, list[dict[str, Any]]]]:
    found, number = [], 0
    for left, right in counts:
        found.append({"left": rows(number, left), "right": rows(number + left, right)})
        number += left + right
    return found


COUNTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5)


def lived(folder: str, counts: Sequence[tuple[int, int]], lived_as: Sequence[Step]) -> tuple[Life, RecordedRun]:
    recorder = Recorder(folder, "number")
    with Life(pipeline(), {"left": COLUMNS, "right": COLUMNS}, recorder=recorder) as life:
        life.live(epochs_of(counts), lived_as)
        return life, read(life, recorder, life.manifests)


def read(life: Life, recorder: Recorder, manifests: Sequence[Manifest]) -> RecordedRun:
    def numbers(source: str, slice: Slice) -> list[int]:
        found: list[int] = life.rows[source].slices[slice.start["position"]]["number"].to_pylist()
        return found

    return recorder.read(manifests, reads_of(pipeline().graph()), numbers)


@examples(12)
@given(COUNTS, steps())
@pytest.mark.claim("Thesis, definition 3.3.1")
def test_epochs_without_spark_are_epoch_cuts(counts: list[tuple[int, int]], lived_as: list[Step]) -> None:
    """Epochs are aborted, retried, recovered and rescaled."""
    with TemporaryDirectory() as folder:
        _, recorded = lived(folder, counts, lived_as)
    assert recorded.violations == []
    followed = [event for event in recorded.trace.productions if isinstance(event, RowEvent)]
    assert len(followed) == sum(map(sum, counts))


def test_violations_of_epoch_cuts_are_detected(tmp_path: Path) -> None:
    """A manifest that lacks a file, and one that names files of a later epoch."""
    recorder = Recorder(str(tmp_path), "number")
    with Life(pipeline(), {"left": COLUMNS, "right": COLUMNS}, recorder=recorder) as life:
        life.live(epochs_of([(6, 3), (5, 5)]), [Step(), Step("abort", 3)])
        first, second = life.manifests
        assert read(life, recorder, [first, second]).violations == []
        lost = second.model_copy(update={"deltas": second.deltas[1:]})
        assert any("never consumed" in problem for problem in read(life, recorder, [first, lost]).violations)
        early = first.model_copy(update={"deltas": (*first.deltas, *second.deltas)})
        late = second.model_copy(update={"deltas": ()})
        assert any(problem.startswith("(1)") for problem in read(life, recorder, [early, late]).violations)


class RecordedHarness(Harness):
    def __init__(self, recorder: Recorder, spark: SparkSession) -> None:
        self.recorder = recorder
        configuration = Configuration(parallelism=2, max_parallelism=12, epoch_interval_seconds=0)
        super().__init__(pipeline(), spark, configuration)
        plain = self._engine._program
        self._engine._program = lambda *of: self.recorder.recorded(plain(*of))  # type: ignore[method-assign]
        self._engine.begin(self._engine.current)  # again, recorded

    @property
    def manifests(self) -> list[Manifest]:
        return [self._engine.store.read_manifest(each.manifest) for each in self._engine.decided if each.manifest]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.claim("Thesis, definition 3.4.2")
def test_epochs_on_spark_are_epoch_cuts(spark: SparkSession, tmp_path: Path) -> None:
    recorder, taken = Recorder(str(tmp_path), "number"), epochs_of([(20, 7), (0, 11), (9, 9), (5, 0)])
    with RecordedHarness(recorder, spark) as test:
        test.epoch(**taken[0])
        with failing_at("E3.collected", OSError("the disk failed")), pytest.raises(EpochAborted):
            test.epoch(**taken[1])
        test.epoch()
        test.restart(parallelism=3)
        test.epoch(**taken[2])
        test.epoch(**taken[3])
        manifests = test.manifests
    slices = {
        source: [[row["number"] for row in given[source]] for given in taken if source in given]
        for source in ("left", "right")
    }
    recorded = recorder.read(
        manifests, reads_of(pipeline().graph()), lambda source, slice: slices[source][slice.start["position"]]
    )
    assert recorded.violations == []
    names = set(recorded.trace.processes)
    assert {"left", "right", "first[2]", "second[2]"} <= names, names
    happened = {run for cut in recorded.cuts.values() for run in cut}
    aborted = [run for run in recorder.runs if run not in happened]
    assert aborted, "the aborted epoch has run no task"
