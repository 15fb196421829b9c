"""A computation that fails for a row fails the attempt and is named, whatever the session's configuration."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from epochal import Pipeline, Stream, tumbling
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.engine.failures import failure_of
from epochal.engine.session import session_settings
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
    assert ("key (k='a')" in message) == (column != "'twice'")  # reported for sums, not for their arguments
    assert "Cast the argument to decimal(38,0)" in message or "no decimal with more digits than decimal(38," in message
    assert "ansi" not in message


@pytest.mark.parametrize("window", [False, True])
def test_an_overflow_names_the_key(spark: SparkSession, window: bool) -> None:
    """One of many keys. The sum overflows within an epoch, or when it is added to the state."""
    pipeline = Pipeline("p")
    source = generator.source({"k": "id", "name": "'x'", "big": "id", "at": "timestamp '2026-01-01 00:00:00'"})
    rows = pipeline.read("rows", source)
    if window:
        keyed = rows.with_watermark("at", "1 hour").key_by("k", "name").window(tumbling("1 hour"))
    else:
        keyed = rows.key_by("k", "name")
    keyed.aggregate("totals", total="sum(big)").write("totals", console.sink())
    at = datetime(2026, 1, 1, tzinfo=UTC)
    others = [{"k": k, "name": "x", "big": k, "at": at} for k in range(20)]
    large = {"k": 13, "name": "x", "big": 2**62, "at": at}
    for first, second in (([], [*others, large, large]), ([large, *others], [*others, large])):
        with Harness(pipeline, spark) as test:
            if first:
                test.epoch(rows=first)
            with pytest.raises(EpochAborted) as raised:
                test.epoch(rows=second)
        assert re.search(
            r"Operator 'totals', column 'total', key \((window_start=.*)?k=13, name='x'", raised.value.message
        )


def test_overflow_before_an_operator_names_the_verb(spark: SparkSession) -> None:
    message = aborted(spark, "n * 2", most="max(n)")
    assert "with_columns(n), column 'n': [ARITHMETIC_OVERFLOW]" in message
    assert "ansi" not in message


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"most": "max(CAST(k AS int))", "n": "count(*)"}, "Operator 'totals', column 'most'.*'a' of the type"),
        (
            {"n": "count(*)", "least": "min(1 / (n - 1073741824))"},
            "Operator 'totals', column 'least'.*Division by zero",
        ),
    ],
)
def test_an_expression_that_fails_for_a_row_names_operator_and_column(
    spark: SparkSession, columns: dict[str, str], message: str
) -> None:
    assert re.search(message, aborted(spark, **columns))


def test_a_filter_that_fails_for_a_row_is_named(spark: SparkSession) -> None:
    pipeline = Pipeline("p")
    rows = pipeline.read("rows", generator.source({"k": "'a'", "wide": "id"}))
    rows.where("CAST(k AS int) > wide").write("out", console.sink())
    with Harness(pipeline, spark) as test, pytest.raises(EpochAborted, match=r"where\(.*CAST_INVALID_INPUT") as raised:
        test.epoch(rows=[("a", 1)])
    assert failure_of(raised.value).type == "computation-failed"


def test_permanent_failure_is_neither_retried_nor_printed_with_traces(tmp_path: Path) -> None:
    file = tmp_path / "large.py"
    file.write_text(
        "from epochal import Pipeline\n"
        "from epochal.connectors import console, generator\n"
        "pipeline = Pipeline('large')\n"
        "rows = pipeline.read('rows', generator.source({'k': 'id % 3', 'big': '1L << 62'}, bound=20))\n"
        "rows.key_by('k').aggregate('totals', total='sum(big)').write('out', console.sink())\n"
    )
    command = [sys.executable, "-m", "epochal.cli.main", "run", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    printed = " ".join((ran.stdout + ran.stderr).split())
    assert ran.returncode == 1
    assert printed.count("abort: epoch") == 1, printed
    assert "Operator 'totals', column 'total'" in printed
    assert len(printed) < 1_000, printed


@pytest.mark.alternating(3)
def test_sum_over_changes_may_overflow_within_an_epoch(spark: SparkSession) -> None:
    """The old value is retracted and the new one added: both fit, and so does the result."""
    pipeline = Pipeline("p")
    rows = pipeline.read("rows", generator.source({"k": "'a'", "big": "id", "n": "CAST(id AS int)"}))
    newest = rows.key_by("k").aggregate("newest", changes=True, big="max_by(big, n)").with_column("of_all", "1")
    totals = newest.key_by("of_all").aggregate("totals", total="sum(big)", mean="avg(big)")
    totals.write("totals", console.sink())
    with Harness(pipeline, spark) as test:
        test.epoch(rows=[("a", -(2**63), 1)])
        found = test.epoch(rows=[("a", 2**63 - 1, 2)])["totals"].to_pylist()
    assert [(row["total"], row["mean"]) for row in found] == [(2**63 - 1, float(2**63))]


def test_ansi_mode_cannot_be_disabled() -> None:
    with pytest.raises(ValidationError, match=r"spark\.sql\.ansi\.enabled is always true"):
        Configuration(spark={"spark.sql.ansi.enabled": "False"})
    assert session_settings(Configuration())["spark.sql.ansi.enabled"] == "true"
