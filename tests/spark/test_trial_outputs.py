"""The outputs of two versions are compared as multisets, for rows of any type."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.engine.trial_comparison import KeepingSink, SinkComparison, compare_outputs

PLAIN = pa.schema([("name", pa.string()), ("n", pa.int64())])
NESTED = pa.schema([("tags", pa.map_(pa.string(), pa.int32())), ("points", pa.list_(pa.float64()))])


def written(folder: Path, rows: list[dict[str, object]], schema: pa.Schema = PLAIN) -> list[Handle]:
    """The rows written by two tasks, of which the second may have none."""
    sink = KeepingSink("out", str(folder))
    handles = []
    for subtask, mine in enumerate((rows[::2], rows[1::2])):
        scope = EpochScope("app", EpochKey("trial-1", 1), 1, None)
        transaction = sink.start(TaskScope(scope, "out", subtask))
        if mine:
            transaction.write(pa.RecordBatch.from_pylist(mine, schema=schema))
        handles.append(transaction.pre_commit())
    return handles


def compared(spark: SparkSession, folder: Path, before: list, after: list, **more: pa.Schema) -> SinkComparison:  # type: ignore[type-arg]
    sides = [written(folder / name, rows, **more) for name, rows in (("before", before), ("after", after))]
    return compare_outputs(spark, "out", len(before), *sides)


def test_trial_comparison_ignores_the_order_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"name": "a", "n": 1}, {"name": "b", "n": None}, {"name": "a", "n": 1}]
    found = compared(spark, tmp_path, rows, rows[::-1])
    assert found.same
    assert found == SinkComparison("out", 3, 3, 3, 0, 0, ())


def test_duplicate_rows_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    before = [{"name": "a", "n": 1}] * 3 + [{"name": "b", "n": 2}]
    after = [{"name": "a", "n": 1}, {"name": "b", "n": None}, {"name": "b", "n": None}]
    found = compared(spark, tmp_path, before, after)
    assert (found.before, found.after, found.only_before, found.only_after) == (4, 3, 3, 2)
    assert sorted(found.examples, key=str) == sorted(
        [
            {"row": {"name": "a", "n": 1}, "version": "before", "times": 2},
            {"row": {"name": "b", "n": 2}, "version": "before", "times": 1},
            {"row": {"name": "b", "n": None}, "version": "after", "times": 2},
        ],
        key=str,
    )


def test_maps_and_lists_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    before = [{"tags": {"x": 1}, "points": [0.5]}, {"tags": None, "points": []}]
    after = [{"tags": {"x": 2}, "points": [0.5]}, {"tags": None, "points": []}]
    found = compared(spark, tmp_path, before, after, schema=NESTED)
    assert (found.only_before, found.only_after) == (1, 1)
    assert {example["row"]["tags"]["x"] for example in found.examples} == {1, 2}


def test_decimals_are_compared_with_all_digits(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("total", pa.decimal128(30, 2))])
    before, after = ([{"total": Decimal(f"12345678901234567890.1{cent}")}] for cent in (1, 2))
    found = compared(spark, tmp_path, before, after, schema=schema)
    assert {example["row"]["total"] for example in found.examples} == {
        "12345678901234567890.11",
        "12345678901234567890.12",
    }


def test_sink_without_rows_of_one_version_is_compared(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"name": "a", "n": 1}]
    assert (
        compared(spark, tmp_path / "none", [], []).same,
        compared(spark, tmp_path / "new", [], rows).only_after,
        compared(spark, tmp_path / "old", rows, []).only_before,
    ) == (True, 1, 1)
