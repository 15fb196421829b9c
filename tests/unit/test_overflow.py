"""A number that leaves its type fails the epoch, naming operator and column, whatever the session's configuration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from epochal import Pipeline, Stream
from epochal.connectors import console, generator
from epochal.engine.session import session_settings
from epochal.engine.settings import Configuration
from epochal.errors import EpochAborted
from epochal.testing import Harness

LARGE = {"k": "a", "big": 2**62, "n": 2**30}


@pytest.fixture
def not_ansi(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield spark
    spark.conf.unset("spark.sql.ansi.enabled")


def aborted(spark: SparkSession, *steps: str, **columns: str) -> str:
    pipeline = Pipeline("p")
    rows: Stream = pipeline.read("rows", generator.source({"k": "'a'", "big": "id", "n": "CAST(id AS int)"}))
    for step in steps:
        rows = rows.with_columns(n=step)
    rows.key_by("k").aggregate("safe", all="count(*)").write("safe", console.sink())
    rows.key_by("k").aggregate("totals", **columns).write("totals", console.sink())
    with Harness(pipeline, spark) as test, pytest.raises(EpochAborted) as raised:
        test.epoch(rows=[LARGE, LARGE])
    return raised.value.message


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"most": "max(big)", "total": "sum(big)", "mean": "avg(big)"}, "'total'"),
        ({"twice": "max(n * 2)"}, "'twice'"),
        ({"paid": "avg(CAST(big AS decimal(38,0)) * 9999999999999999999)", "n": "sum(n)"}, "'paid'"),
    ],
)
def test_an_overflow_within_an_epoch_names_operator_and_column(
    not_ansi: SparkSession, columns: dict[str, str], column: str
) -> None:
    message = aborted(not_ansi, **columns)
    assert f"Operator 'totals', column {column}" in message
    assert "Cast the argument to decimal(38,0)" in message or "no decimal with more digits than decimal(38," in message
    assert "ansi" not in message


def test_an_overflow_before_the_operator_is_told_from_its_own(spark: SparkSession) -> None:
    message = aborted(spark, "n * 2", most="max(n)")
    assert "the columns that operator 'totals' reads" in message or "operator 'safe' reads" in message
    assert "ansi" not in message


@pytest.mark.by_turns(3)
def test_a_sum_over_changes_may_leave_its_type_within_an_epoch(spark: SparkSession) -> None:
    """What was is taken back, and what is there now is added: each fits, and so does what they leave."""
    pipeline = Pipeline("p")
    rows = pipeline.read("rows", generator.source({"k": "'a'", "big": "id", "n": "CAST(id AS int)"}))
    newest = rows.key_by("k").aggregate("newest", changes=True, big="max_by(big, n)").with_column("of_all", "1")
    totals = newest.key_by("of_all").aggregate("totals", total="sum(big)", mean="avg(big)")
    totals.write("totals", console.sink())
    with Harness(pipeline, spark) as test:
        test.epoch(rows=[("a", -(2**63), 1)])
        found = test.epoch(rows=[("a", 2**63 - 1, 2)])["totals"].to_pylist()
    assert [(row["total"], row["mean"]) for row in found] == [(2**63 - 1, float(2**63))]


def test_a_configuration_cannot_switch_ansi_off() -> None:
    with pytest.raises(ValidationError, match=r"spark\.sql\.ansi\.enabled is always true"):
        Configuration(spark={"spark.sql.ansi.enabled": "False"})
    assert session_settings(Configuration())["spark.sql.ansi.enabled"] == "true"
