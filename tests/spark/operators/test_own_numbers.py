"""Aggregates with another number of subtasks than the application, whose number Spark's own shuffles have."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from epochal import Pipeline, tumbling
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.testing import Harness

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [{"k": number % 17, "v": number, "at": BEGIN + timedelta(seconds=number)} for number in range(120)]
SHARES = [ROWS[first : first + 30] for first in range(0, 120, 30)]


def pipeline() -> Pipeline:
    pipeline = Pipeline("numbers")
    rows = pipeline.read("rows", generator.source({"k": "id", "v": "id", "at": "timestamp_seconds(id)"}))
    rows.key_by("k").aggregate("own", n="count(*)", s="sum(v)", parallelism=3).write("own", console.sink())
    rows.key_by("k").aggregate("usual", n="count(*)", s="sum(v)").write("usual", console.sink())
    timed = rows.with_watermark("at", "0 seconds").key_by("k").window(tumbling("10 seconds"))
    timed.aggregate("timed", n="count(*)").write("timed", console.sink())
    return pipeline


def test_aggregates_have_the_same_rows_with_any_number_of_subtasks(spark: SparkSession) -> None:
    """3 does not divide the 128 key groups; 4 and 16 do, as 8 does, for which Spark's own shuffle is used."""
    configuration = Configuration(parallelism=8, parallelisms={"timed": 5}, epoch_interval_seconds=0)
    counts, sums, windows = Counter[int](), Counter[int](), Counter[tuple[Any, int]]()
    with Harness(pipeline(), spark, configuration) as test:
        found: list[dict[str, Any]] = []
        for number, share in enumerate(SHARES):
            if number:
                test.restart(parallelisms=({"own": 4, "timed": 16}, {"own": 16, "timed": 4}, {"usual": 2})[number - 1])
            output = test.epoch(rows=share)
            for row in share:
                counts[row["k"]] += 1
                sums[row["k"]] += row["v"]
                windows[row["k"], (row["at"] - BEGIN) // timedelta(seconds=10)] += 1
            changed = {row["k"]: (counts[row["k"]], sums[row["k"]]) for row in share}
            for name in ("own", "usual"):
                assert {row["k"]: (row["n"], row["s"]) for row in output[name].to_pylist()} == changed
                assert output[name].num_rows == len(changed)
            found += output["timed"].to_pylist()
        found += test.drain()["timed"].to_pylist()
        closed = {(row["k"], (row["window_start"] - BEGIN) // timedelta(seconds=10)): row["n"] for row in found}
        assert closed == windows
        assert len(found) == len(windows)
        assert state(test, "own") == state(test, "usual") == {key: (counts[key], sums[key]) for key in counts}


def state(test: Harness, table: str) -> dict[int, tuple[int, int]]:
    return {row["k"]: (row["n"], row["s"]) for row in test.state(table).to_pylist()}
