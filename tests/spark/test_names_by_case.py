"""Column names that differ from those of the input only by case: Spark finds them, and so does every operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from epochal import BatchFunction, BroadcastProcess, KeyedProcess, Pipeline, Stream, ValueState, session, tumbling
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2020, 1, 1, tzinfo=UTC)
COLUMNS = {"key": "cast(id as string)", "at": "timestamp_seconds(id)", "value": "cast(id as int)"}


class Total(KeyedProcess):
    total = ValueState("total int")
    output = "key string, total int"
    order_by = "VALUE"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]:
        self.total.set((self.total.get() or 0) + sum(row.value for row in rows if row.key == key.KEY))
        yield key.KEY, self.total.get()


class TotalWithTimers(Total):
    def on_timer(self, key: Any, at: Any, ctx: Any) -> None: ...


class TotalBesideControl(BroadcastProcess):
    total = ValueState("total int")
    output = "key string, total int"
    process = Total.process

    def process_broadcast(self, row: Any, ctx: Any) -> None: ...


class TotalOfWindow(KeyedProcess):
    output = "key string, total int"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]:
        yield key.KEY, sum(row.value for row in rows if row.key == key.KEY)


class TotalOfBatch(BatchFunction):
    output = "key string, total int"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        totals = batch.group_by(["key"]).aggregate([("value", "sum")]).rename_columns(["key", "total"])
        return totals.cast(pa.schema([("key", pa.string()), ("total", pa.int32())]))


VERBS: dict[str, Callable[[Stream], Stream]] = {
    "aggregate": lambda rows: rows.key_by("KEY").aggregate("totals", total="sum(VALUE)"),
    "ttl": lambda rows: rows.key_by("KEY").aggregate("lived", total="sum(VALUE)", ttl="1 day", ttl_on="event_time"),
    "windows": lambda rows: rows.key_by("KEY").window(tumbling("1 hour")).aggregate("hours", total="sum(VALUE)"),
    "sessions": lambda rows: rows.key_by("KEY").window(session("1 hour")).aggregate("visits", total="sum(VALUE)"),
    "distinct": lambda rows: rows.key_by("KEY").distinct("keys").with_column("total", "5"),
    "drop_duplicates": lambda rows: rows.drop_duplicates("KEY").with_column("total", "5"),
    "top": lambda rows: rows.key_by("KEY").top(1, "VALUE").with_column("total", "value + 2"),
    "top_of_windows": lambda rows: (
        rows.key_by("KEY").top(1, "VALUE", "best", within=tumbling("1 hour")).with_column("total", "value + 2")
    ),
    "process": lambda rows: rows.key_by("KEY").process(Total),
    "process_with_timers": lambda rows: rows.key_by("KEY").process(TotalWithTimers),
    "process_of_windows": lambda rows: rows.key_by("KEY").window(tumbling("1 hour")).process(TotalOfWindow, "hour"),
    "process_of_sessions": lambda rows: rows.key_by("KEY").window(session("1 hour")).process(TotalOfWindow, "visit"),
    "process_batch": lambda rows: rows.key_by("KEY").process_batch(TotalOfBatch),
    "connect": lambda rows: (
        rows.connect(rows.where("false"), broadcast=True, order_by="AT").key_by("KEY").process(TotalBesideControl)
    ),
}


IN_EVERY_RUN = ("aggregate", "windows", "drop_duplicates", "top", "process")
"""One verb for each way in which keys reach tasks."""


@pytest.mark.parametrize("verbs", [IN_EVERY_RUN, pytest.param(tuple(VERBS), marks=pytest.mark.long)], ids=len)
@pytest.mark.alternating(3)
def test_key_columns_are_found_case_insensitively(spark: SparkSession, verbs: tuple[str, ...]) -> None:
    pipeline = Pipeline("case")
    rows = pipeline.read("rows", generator.source(COLUMNS)).with_watermark("AT", "10 seconds")
    for sink in verbs:
        VERBS[sink](rows).select("key", "cast(total as int) AS total").write(sink, console.sink())
    with Harness(pipeline, spark, Configuration(parallelism=2, state_backend="heap", epoch_interval_seconds=0)) as test:
        first, drained = test.epoch(rows=[("ann", START, 2), ("ann", START, 3)]), test.drain()
    found = {sink: first[sink].to_pylist() + drained[sink].to_pylist() for sink in verbs}
    assert found == {sink: [{"key": "ann", "total": 5}] for sink in verbs}
