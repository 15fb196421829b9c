"""Parts of an epoch's time on Spark: sleeps in the author's code, the sink and the state are found in their part.

A sleep is a lower bound, however loaded the machine is. If an operator and its sink share a task, their parts are
disjoint intervals of one thread, so that together they are not longer than the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.backends.console import ConsoleBackend, ConsoleTransaction
from epochal.backends.delta import DeltaTransaction
from epochal.backends.heap import HeapBackend
from epochal.connectors import files
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.measurements import MeasuredEpoch
from epochal.engine import assembly
from epochal.engine.epoch_parts import JobTime
from epochal.engine.execution import Hooks, run
from epochal.engine.meter import Meter
from epochal.pipeline.definitions import SinkDefinition
from epochal.pipeline.stream import Stream
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState

STEP = 0.2
"""Seconds of a sleep. Each part has another number of them."""
KEYS = ("a", "b", "c")


class Watched(Meter):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[JobTime] = []

    def job_ran(self, epoch: int, job: JobTime) -> None:
        self.jobs.append(job)
        super().job_ran(epoch, job)


class SlowTransaction(ConsoleTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(STEP)
        super().write(batch)

    def pre_commit(self) -> Handle:
        time.sleep(STEP)
        return super().pre_commit()


class SlowSink(ConsoleBackend):
    """Two sleeps in a task with rows, one in the commit."""

    def start(self, task: TaskScope) -> SlowTransaction:
        return SlowTransaction(task, 1)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        time.sleep(STEP)
        super().commit(epoch, handles)


class SlowState(HeapBackend):
    """One sleep in T1. The store of the driver has another one."""

    def start(self, task: TaskScope) -> DeltaTransaction:
        time.sleep(STEP)
        return super().start(task)


class Slow(KeyedProcess):
    """One sleep for each key."""

    count = ValueState("n bigint")
    output = "k string, n bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        time.sleep(STEP)
        self.count.set((self.count.get() or 0) + len(rows))
        yield key.k, self.count.get()


def slow_map(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(STEP)
        yield batch


SINK = SinkDefinition("console", lambda place: SlowSink())


def measured(
    build: Callable[[Stream], None],
    spark: SparkSession,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtasks: int = 1,
) -> tuple[MeasuredEpoch, JobTime]:
    """The only epoch of an attempt over one row of each key."""
    write_manifest = SnapshotStore.write_manifest

    def slowly(store: SnapshotStore, *arguments: Any) -> Any:
        time.sleep(STEP)
        return write_manifest(store, *arguments)

    monkeypatch.setattr(SnapshotStore, "write_manifest", slowly)
    monkeypatch.setattr(assembly, "find", lambda group, name: SlowState)
    (folder / "in").mkdir()
    (folder / "in" / "rows.json").write_text("".join(f'{{"k": "{key}"}}\n' for key in KEYS))
    pipeline = Pipeline("slow")
    build(pipeline.read("rows", files.source(str(folder / "in"), format="json", schema="k string")))
    orders = ExecutionOrders(
        application="slow",
        execution="one",
        attempt=1,
        artifact="none",
        configuration=Configuration(epoch_interval_seconds=0.0, parallelism=subtasks),
        store=str(folder / "store"),
        cache_directory=str(folder / "cache"),
        available_now=True,
    )
    meter = Watched()
    run(orders, pipeline.graph(), spark, MemoryCatalog(MemoryCatalogState(), 1), Hooks(meter=meter))
    report = meter.report()
    (epoch,), (job,) = report.epochs, meter.jobs
    seconds = sum(epoch.parts.values())
    assert set(epoch.parts) == {"planning", "spark", "python", "store", "sink", "protocol"}
    assert min(epoch.parts.values()) >= 0
    assert seconds == pytest.approx(sum(report.totals.parts.values()), abs=1e-4)
    assert sum(epoch.steps[step] for step in ("E1", "E2", "E3", "E4", "E5", "E6")) <= seconds + 1e-4
    assert report.totals.epochs.seconds <= seconds + 1e-4 and epoch.parts["planning"] > 0 and epoch.parts["spark"] > 0
    return epoch, job


def test_an_operator_and_a_sink_in_one_task(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, job = measured(lambda rows: rows.key_by("k").process(Slow).write("out", SINK), spark, tmp_path, monkeypatch)
    least = {"python": len(KEYS), "store": 2, "sink": 3}
    for part, sleeps in least.items():
        assert epoch.parts[part] >= sleeps * STEP - 0.001, epoch.parts  # type: ignore[index]
    assert sum(job.tasks.values()) <= sum(step.longest for step in epoch.tasks.values()) + 0.001
    assert job.tasks["store"] >= STEP - 0.001 and job.tasks["sink"] >= 2 * STEP - 0.001


def test_a_sink_behind_sql(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, job = measured(
        lambda rows: rows.key_by("k").process(Slow).where("n > 0").write("out", SINK), spark, tmp_path, monkeypatch, 2
    )
    assert job.tasks["python"] >= len(KEYS) * STEP / 2 - 0.001  # two subtasks at the same time
    assert job.tasks["store"] >= STEP - 0.001 and job.tasks["sink"] >= 2 * STEP - 0.001
    assert epoch.parts["store"] >= STEP - 0.001 and epoch.parts["sink"] >= STEP - 0.001  # of the driver


def test_an_operator_with_two_readers(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a job of its own while the driver builds the frames; that job is not planning."""

    def build(rows: Stream) -> None:
        counts = rows.key_by("k").process(Slow)
        counts.write("out", SINK)
        counts.where("n > 1").write("other", SINK)

    epoch, job = measured(build, spark, tmp_path, monkeypatch)
    assert job.tasks["python"] >= len(KEYS) * STEP - 0.001 and job.tasks["store"] >= STEP - 0.001
    assert epoch.steps["E2"] - epoch.parts["planning"] >= (len(KEYS) + 1) * STEP - 0.001


def test_a_stateless_function_and_its_sink(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, job = measured(
        lambda rows: rows.map_arrow(slow_map, "k string").write("out", SINK), spark, tmp_path, monkeypatch
    )
    assert job.tasks["python"] >= STEP - 0.001 and job.tasks["sink"] >= 2 * STEP - 0.001
    assert "store" not in job.tasks and epoch.parts["store"] >= STEP - 0.001  # the manifest
    assert epoch.parts["sink"] >= STEP - 0.001
