"""A trial runs epochs at their own time, so that state that depends on the time is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline, tumbling
from epochal.connectors import files
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.inbox import CallBatch, GivenCalls
from epochal.engine.execution import Hooks, run
from epochal.engine.trial import Tried, run_trial
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.reminders import RemindersOperator


def orders_in(folder: Path, available_now: bool, **configured: Any) -> ExecutionOrders:
    return ExecutionOrders(
        application="reminders",
        execution="one",
        attempt=1,
        artifact="a" * 64,
        configuration=Configuration(state_backend="heap", epoch_interval_seconds=0, **configured),
        available_now=available_now,
        store=str(folder / "store"),
        cache_directory=str(folder / "cache"),
    )


@pytest.mark.alternating(3)
def test_trial_uses_the_epoch_times_of_the_manifests(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, name in enumerate(("ann", "bob")):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"name": name, "n": 3600}))
    pipeline = Pipeline("reminders")
    source = files.source(str(tmp_path / "in"), format="json", schema="name string, n bigint", max_files=1)
    events = pipeline.read("events", source)
    read = events.with_columns(read="epoch_time()").key_by("name").aggregate("read", at="max(read)")
    read.write("read", files.sink(str(tmp_path / "read"), mode="updates"))
    keyed = events.key_by("name")
    keyed._operator(RemindersOperator(), parallelism=None).write("due", files.sink(str(tmp_path / "out")))
    orders, state = orders_in(tmp_path, available_now=True), MemoryCatalogState()
    run(orders, pipeline.graph(), spark, MemoryCatalog(state, 1))
    assert [record.opened_for for record in state.decided] == [("input",), ("input",)]
    assert state.head is not None and SnapshotStore(orders.store).read_manifest(state.head).due.keys() == {"reminders"}
    waits = state.decided[-1].next_due
    assert waits is not None and (waits.operator, waits.clock, waits.at) == ("reminders", "processing", waits.until)
    tried = Tried(orders, pipeline.graph())
    report = run_trial(tried, tried, spark, state.head, epochs=2)
    assert (report.epochs, report.same) == (2, True), report


@pytest.mark.long
def test_trial_of_the_last_epoch_gives_the_same_output(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text(json.dumps({"name": "ann", "at": "2026-01-01T10:30:00Z"}))
    pipeline = Pipeline("windows")
    schema = "name string, at timestamp"
    source = files.source(str(tmp_path / "in"), format="json", schema=schema, bounded=True)
    timed = pipeline.read("events", source).with_watermark("at", "1 minute")
    hourly = timed.key_by("name").window(tumbling("1 hour")).aggregate("hourly", n="count(*)")
    hourly.write("out", files.sink(str(tmp_path / "out")))
    orders, state = orders_in(tmp_path, available_now=False), MemoryCatalogState()
    run(orders, pipeline.graph(), spark, MemoryCatalog(state, 1))
    assert [(record.opened_for, record.rows_out) for record in state.decided] == [(("input",), 0), (("drain",), 1)]
    assert state.head is not None
    tried = Tried(orders, pipeline.graph())
    report = run_trial(tried, tried, spark, state.head, epochs=2)
    assert (report.epochs, report.same) == (2, True), report


def test_trial_repeats_the_calls_of_its_epochs(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("notes")
    pipeline.entry("note", {"key": "string"}).key_by("key").aggregate("notes", n="count(*)")
    noted = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")]
    ids, texts = zip(*((id, json.dumps({"key": key})) for id, key in noted), strict=True)
    inbox = GivenCalls(
        [
            CallBatch(entry="note", first=10, request_ids=ids[:3], arguments=texts[:3]),
            CallBatch(entry="note", first=20, request_ids=ids[3:], arguments=texts[3:]),
        ]
    )
    orders = orders_in(tmp_path, available_now=True)
    orders = orders.model_copy(
        update={"configuration": orders.configuration.model_copy(update={"max_records_per_epoch": 2})}
    )
    state = MemoryCatalogState()
    run(orders, pipeline.graph(), spark, MemoryCatalog(state, 1), Hooks(inbox=inbox))
    assert [record.rows_in for record in state.decided] == [2, 2]
    assert state.head is not None
    tried = Tried(orders, pipeline.graph())
    report = run_trial(tried, tried, spark, state.head, epochs=1, inbox=inbox)
    assert (report.epochs, report.same) == (1, True), report
    assert {table.table: table.rows for table in report.tables} == {"notes": 3, "note_answers": 4}
