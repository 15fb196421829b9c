"""A windowed aggregate aggregates rows before their shuffle after an epoch with far more rows than keys and windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline, tumbling
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.engine import operator_subtasks
from epochal.operators.distribution import Subtasks
from epochal.operators.windows.plan import WindowedAggregatePlan
from epochal.testing import Harness

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 400
PANE = timedelta(minutes=1)


@pytest.fixture
def combined(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One value for each epoch: true if it aggregated rows before their shuffle."""
    found: list[bool] = []
    distributed = WindowedAggregatePlan.distributed

    def noting(self: WindowedAggregatePlan, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        found.append(subtasks.combined)
        return distributed(self, frames, subtasks)

    monkeypatch.setattr(WindowedAggregatePlan, "distributed", noting)
    monkeypatch.setattr(operator_subtasks, "FEWEST_ROWS", ROWS)
    return found


def rows_of(epoch: int, count: int, keys: int) -> list[dict[str, Any]]:
    """Rows of two windows in each epoch, of which the second also has rows of the next epoch."""
    return [
        {"key": number % keys, "at": START + epoch * PANE + number * 2 * PANE / count, "number": number}
        for number in range(count)
    ]


def test_rows_are_combined_after_an_epoch_with_many_rows_of_few_keys(spark: SparkSession, combined: list[bool]) -> None:
    pipeline = Pipeline("combined")
    columns = {"key": "id", "at": "timestamp_seconds(id)", "number": "id"}
    rows = pipeline.read("rows", generator.source(columns)).with_watermark("at", "2 minutes")
    windowed = rows.key_by("key").window(tumbling("1 minute")).aggregate("sums", rows="count(*)", total="sum(number)")
    windowed.write("out", console.sink())
    epochs = [
        rows_of(0, ROWS, 5),  # many rows of each key
        rows_of(1, ROWS, 7),
        rows_of(2, ROWS, ROWS),  # one row of each key
        rows_of(3, ROWS, 5),
        rows_of(4, ROWS // 2, 5),  # few rows
        rows_of(5, ROWS, 5),
    ]
    last = [{"key": -1, "at": START + timedelta(days=1), "number": 0}]
    configuration = Configuration(state_backend="heap", parallelism=2, max_parallelism=8, epoch_interval_seconds=0)
    found: Counter[tuple[Any, ...]] = Counter()
    with Harness(pipeline, spark, configuration) as test:
        for each in [*epochs, last, []]:
            for row in test.epoch(rows=each)["out"].to_pylist():
                found[row["key"], row["window_start"], row["rows"], row["total"]] += 1
    assert combined[:6] == [False, True, True, False, True, False]
    expected: dict[tuple[int, datetime], list[int]] = {}
    for row in (row for each in epochs for row in each):
        start = row["at"].replace(second=0, microsecond=0)
        expected.setdefault((row["key"], start), []).append(row["number"])
    assert found == Counter((*group, len(numbers), sum(numbers)) for group, numbers in expected.items())
