"""Small epochs of operators with over 100 aggregates run without generated code and give the rows of a batch."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from epochal import Pipeline
from epochal.connectors import console, files
from epochal.contracts.configuration import Configuration
from epochal.contracts.source import SliceLimits
from epochal.engine.session import CODEGEN, COMPILED_AGGREGATES, INTERPRETED, INTERPRETED_ROWS, interpreted
from epochal.testing import Harness

WIDE = COMPILED_AGGREGATES + 1
COMPILED = "CODEGEN_ONLY"
COLUMNS = "k string, n bigint, d decimal(12,3), x double, s string, b boolean, t timestamp"
FUNCTIONS = [
    *(f"{function}({column})" for function in ("count", "min", "max") for column in "ndxsbt"),
    *(f"{function}({column})" for function in ("sum", "avg") for column in "ndx"),
    *("max_by(s, n)", "min_by(d, t)", "bool_or(b)", "count_if(n > 3)", "sum(n) / count(*)", "stddev(n)"),
]
MODE_COLUMNS = "k string, n bigint, mode string"


def wide(expressions: list[str], columns: int = WIDE) -> dict[str, str]:
    return {f"c{number}": expressions[number % len(expressions)] for number in range(columns)}


def pipeline(*operators: dict[str, str], columns: str = COLUMNS, modes: bool = False) -> Pipeline:
    made = Pipeline("wide")
    rows = made.read("rows", files.source("/nowhere", format="json", schema=columns))
    if modes:
        rows = rows.transform(with_mode)
    for number, aggregates in enumerate(operators):
        rows.key_by("k").aggregate(f"a{number}", **aggregates).write(f"out{number}", console.sink())
    return made


def with_mode(frame: DataFrame) -> DataFrame:
    """The rows with the code generation setting of their task."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mode = context.getLocalProperty(CODEGEN)
        for batch in batches:
            yield batch.append_column("mode", pa.array([mode] * batch.num_rows, pa.string()))

    return frame.mapInArrow(read, MODE_COLUMNS)


def modes_of(test: Harness, operators: int, rows: int = 1) -> list[str]:
    test.spark.conf.set(CODEGEN, COMPILED)
    outputs = test.epoch(rows=[{"k": "a", "n": 1}] * rows)
    assert test.spark.conf.get(CODEGEN) == COMPILED, "the session keeps the setting of an epoch"
    return [outputs[f"out{number}"].to_pylist()[0]["mode"] for number in range(operators)]


@pytest.mark.parametrize(
    ("widths", "expected"), [([WIDE], INTERPRETED), ([COMPILED_AGGREGATES], COMPILED), ([WIDE, 3], COMPILED)]
)
def test_code_is_generated_unless_every_operator_is_wide(spark: SparkSession, widths: list[int], expected: str) -> None:
    before = spark.conf.get(CODEGEN)
    operators = [{"mode": "max(mode)", **wide(["sum(n)"], width - 1)} for width in widths]
    with Harness(pipeline(*operators, columns="k string, n bigint", modes=True), spark) as test:
        assert modes_of(test, len(widths)) == [expected] * len(widths)
    assert spark.conf.get(CODEGEN) == before


def test_code_is_generated_for_large_epochs_of_wide_operators(spark: SparkSession) -> None:
    operator = {"mode": "max(mode)", **wide(["sum(n)"])}
    with Harness(pipeline(operator, columns="k string, n bigint", modes=True), spark) as test:
        for rows, expected in ((INTERPRETED_ROWS + 1, COMPILED), (INTERPRETED_ROWS, INTERPRETED)):
            test.spark.conf.set(CODEGEN, COMPILED)
            test.epoch(rows=[{"k": f"{expected}", "n": 1}] * rows)
            assert test.spark.conf.get(CODEGEN) == COMPILED
        found = {row["k"]: row["mode"] for row in test.state("a0").to_pylist()}
        assert found == {COMPILED: COMPILED, INTERPRETED: INTERPRETED}


def test_maximum_number_of_rows_exists_for_text_unless_compressed(tmp_path: Path) -> None:
    for name, text in (("a.json", b"{}\n" * 3), ("b.json", b"{}\n")):
        (tmp_path / name).write_bytes(text)
    source = files.source(str(tmp_path), format="json", schema="k string").make()
    source.restore(None, ())
    slice = source.plan(SliceLimits(None))
    assert slice is not None and source.most_rows(slice) == 12
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b"{}\n" * 1000))
    slice = source.plan(SliceLimits(None))
    assert slice is not None and source.most_rows(slice) is None


def test_the_setting_of_the_application_takes_precedence(spark: SparkSession) -> None:
    operator = {"mode": "max(mode)", **wide(["sum(n)"])}
    chosen = Configuration(state_backend="heap", epoch_interval_seconds=0, spark={CODEGEN: COMPILED})
    with Harness(pipeline(operator, columns="k string, n bigint", modes=True), spark, chosen) as test:
        assert modes_of(test, 1) == [COMPILED]


def test_a_failure_leaves_no_setting_in_the_session(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set(CODEGEN, COMPILED)

    def epoch() -> None:
        with interpreted(session):
            assert session.conf.get(CODEGEN) == INTERPRETED
            raise ValueError("no epoch")

    with pytest.raises(ValueError, match="no epoch"):
        epoch()
    assert session.conf.get(CODEGEN) == COMPILED


def some_rows(choose: random.Random, keys: int) -> list[tuple[Any, ...]]:
    def row(key: int) -> tuple[Any, ...]:
        number = choose.randint(-9, 9)
        values = (number, number, number / 4, choose.choice("abß"), choose.random() < 0.5, 1_700_000_000 + number)
        return (f"k{key}", *(None if choose.random() < 0.2 else value for value in values))

    return [row(key) for key in [*range(keys), *(choose.randrange(keys) for _ in range(20))]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_wide_aggregates_equal_narrow_ones_and_batch(spark: SparkSession, seed: int) -> None:
    choose = random.Random(seed)
    all_aggregates = wide(choose.sample(FUNCTIONS, len(FUNCTIONS)))
    names = choose.sample(sorted(all_aggregates), 20)
    epochs = [some_rows(choose, 4) for _ in range(2)]

    def frame(rows: list[tuple[Any, ...]]) -> DataFrame:
        raw = spark.createDataFrame(rows, "k string, n bigint, d bigint, x double, s string, b boolean, t bigint")
        return raw.withColumns({"d": F.expr("d / 8").cast("decimal(12,3)"), "t": F.expr("timestamp_seconds(t)")})

    found: list[list[dict[str, Any]]] = []
    for aggregates in (all_aggregates, {name: all_aggregates[name] for name in names}):
        with Harness(pipeline(aggregates), spark) as test:
            for rows in epochs:
                output = test.epoch(rows=frame(rows))["out0"]
            found.append(sorted(output.select(["k", *names]).to_pylist(), key=lambda row: row["k"]))
    everything = frame([row for rows in epochs for row in rows]).groupBy("k")
    # Spark's max_by takes any of several rows with the same order.
    fixed = [name for name in names if "_by(" not in all_aggregates[name]]
    batch = everything.agg(*(F.expr(all_aggregates[name]).alias(name) for name in fixed)).orderBy("k").toArrow()
    assert found[0] == found[1]
    for one, other in zip(found[0], batch.to_pylist(), strict=True):
        close = {name: pytest.approx(value) if isinstance(value, float) else value for name, value in other.items()}
        assert {name: one[name] for name in close} == close
