"""Missing observations: Spark reports none for a part of a plan that can have no rows."""

from __future__ import annotations

import pytest
from pyspark.sql import Column, Observation, SparkSession
from pyspark.sql import functions as F

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.engine.observations import observed
from epochal.errors import EpochAborted
from epochal.testing import Harness


def rows() -> Column:
    return F.count(F.lit(1)).alias("rows")


def test_missing_observation_is_empty(spark: SparkSession) -> None:
    present, missing = Observation("present"), Observation("missing")
    frame = spark.range(3).observe(present, rows())
    frame.unionAll(spark.range(5).observe(missing, rows()).where("false")).collect()
    assert (observed(present), observed(missing)) == ({"rows": 3}, {})


def test_rows_that_are_never_read_are_not_counted(spark: SparkSession) -> None:
    pipeline = Pipeline("half")
    events = pipeline.read("events", generator.source({"user": "id"}))
    pipeline.read("unread", generator.source({"user": "id"})).where("1 = 0").write("nothing", console.sink())
    events.write("out", console.sink())
    with Harness(pipeline, spark, Configuration(state_backend="heap", epoch_interval_seconds=0)) as test:
        outputs = test.epoch(events=[(1,), (2,)], unread=[(3,)])
        assert (outputs["out"].num_rows, outputs["nothing"].num_rows) == (2, 0)


def test_an_operator_whose_handles_are_missing_aborts_the_epoch(spark: SparkSession) -> None:
    pipeline = Pipeline("nothing")
    counted = pipeline.read("events", generator.source({"user": "id"})).key_by("user").aggregate("n", events="count(*)")
    counted.where("1 = 0").write("out", console.sink())
    with (
        Harness(pipeline, spark, Configuration(state_backend="heap", epoch_interval_seconds=0)) as test,
        pytest.raises(EpochAborted, match=r"'n' must return exactly one handle .* an always-false filter"),
    ):
        test.epoch(events=[(1,)])
