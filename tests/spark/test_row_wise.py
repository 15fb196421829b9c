"""Verbs that compute over the rows of one epoch are refused, according to the plan that Spark explains."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as SF
from pyspark.sql.window import Window

from epochal import Pipeline, tumbling
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.errors import PipelineError
from epochal.pipeline.analysis import analyse
from epochal.pipeline.definitions import TableDefinition
from epochal.pipeline.relation import StaticTable
from epochal.pipeline.row_wise import fault_of_plan
from epochal.pipeline.stream import Stream
from epochal.testing import Harness
from tests.kit.epoch_plans import ALLOWED, RECORDED, REFUSED, explained, version
from tests.kit.workers import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLANS = {file.stem: json.loads(file.read_text()) for file in sorted(RECORDED.glob("*.json"))}
CASES = [*ALLOWED, *REFUSED]


def check(plan: str, case: str) -> None:
    found = fault_of_plan(plan)
    if case in ALLOWED:
        assert found is None
    else:
        assert found is not None and REFUSED[case][1] in found[0]


def test_plans_of_every_supported_version_are_recorded() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    supported = next(text for text in dependencies if text.startswith("pyspark>="))
    first, end = (int(text) for text in re.findall(r"4\.(\d+)", supported))
    assert list(PLANS) == [f"4.{minor}" for minor in range(first, end)]
    assert all(list(plans) == CASES for plans in PLANS.values())


@pytest.mark.parametrize("spark_version", PLANS)
def test_recorded_plans_of_each_supported_version_are_checked(spark_version: str) -> None:
    for case, plan in PLANS[spark_version].items():
        check(plan, case)


def test_plans_of_the_running_version_are_checked(spark: SparkSession) -> None:
    assert version() in PLANS
    every = {**ALLOWED, **{name: made for name, (made, _) in REFUSED.items()}}
    for case, made in every.items():
        check(explained(spark, made), case)


def read(pipeline: Pipeline) -> tuple[Stream, StaticTable]:
    made = generator.source(
        {"k": "cast(id % 3 as string)", "v": "id", "a": "array(1, 2)", "at": "timestamp_micros(id)"}
    )
    names = TableDefinition("made", lambda spark: spark.createDataFrame([("1", 7)], "k string, w bigint"))
    return pipeline.read("rows", made), pipeline.table("names", names)


def latest(frame: DataFrame) -> DataFrame:
    numbered = frame.withColumn("n", SF.row_number().over(Window.partitionBy("k").orderBy(SF.desc("at"))))
    return numbered.where("n = 1").drop("n")


def local_rows(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)


Verb = Callable[[Stream, StaticTable], Stream]

REFUSED_VERBS: dict[str, tuple[Verb, str, str]] = {
    "select": (
        lambda s, t: s.select("sum(v) AS v", "'1' AS k").select("v", "k"),
        "select(sum(v) AS v, '1' AS k) after source 'rows': an aggregate",
        "key_by(..).aggregate(..)",
    ),
    "select, recorded": (lambda s, t: s.select(F.max("v").alias("v"), F.lit("1").alias("k")), "an aggregate", "key_by"),
    "with_columns": (
        lambda s, t: s.with_columns(before="lag(v) OVER (PARTITION BY k ORDER BY at)"),
        "with_columns(before) after source 'rows': a window function",
        "key_by(..).process(..) with state",
    ),
    "a rank": (
        lambda s, t: s.with_columns(n="row_number() OVER (ORDER BY at)").where("n < 3"),
        "with_columns(n) after source 'rows': a window function",
        "key_by(..).top(..) for ranks",
    ),
    "transform": (lambda s, t: s.transform(latest), "transform(latest) after source 'rows'", "key_by(..).top(..)"),
    "a limit": (lambda s, t: s.transform(lambda f: f.limit(5), "first"), "transform(first)", "top(..)"),
    "duplicates": (lambda s, t: s.transform(lambda f: f.distinct(), "once"), "transform(once)", "drop_duplicates(..)"),
    "a join with itself": (
        lambda s, t: s.transform(lambda f: f.join(f.select("k", "at"), ["k", "at"], "left_semi"), "self"),
        "transform(self) after source 'rows': a join of the stream with rows of the same epoch",
        "within=..",
    ),
    "after other verbs": (
        lambda s, t: s.where("v > 1").drop("a").join(t.select("k"), "k").transform(latest).union(s.drop("a")),
        "transform(latest) after source 'rows'",
        "per_epoch=True",
    ),
    "local rows": (lambda s, t: s.transform(local_rows), "transform(local_rows)", "map_arrow(..)"),
    "after event time": (
        lambda s, t: s.with_watermark("at", "1 second").with_columns(n="count(*) OVER ()"),
        "with_columns(n)",
        "a window function",
    ),
    "after an operator": (
        lambda s, t: s.key_by("k").distinct("ks").select("max(k) AS k", "1 AS v"),
        "select(max(k) AS k, 1 AS v) after operator 'ks'",
        "an aggregate",
    ),
    "over late rows": (
        lambda s, t: (
            s.with_watermark("at", "1 second")
            .key_by("k")
            .window(tumbling("1 minute"))
            .aggregate("counted", n="count(*)")
            .late.select("max(k) AS k", "1 AS v")
        ),
        "select(max(k) AS k, 1 AS v) after side 'late' of operator 'counted'",
        "an aggregate",
    ),
}


@pytest.mark.parametrize("reader", ["sink", "operator"])
@pytest.mark.parametrize("case", REFUSED_VERBS)
def test_verbs_over_the_rows_of_an_epoch_are_refused(spark: SparkSession, case: str, reader: str) -> None:
    verb, place, advice = REFUSED_VERBS[case]
    pipeline = Pipeline("cut")
    stream = verb(*read(pipeline))
    if reader == "operator":
        stream = stream.key_by("k").aggregate("totals", total="count(*)")
    stream.write("out", console.sink())
    with pytest.raises(PipelineError) as refused:
        analyse(pipeline.graph(), spark)
    assert place in refused.value.message and advice in refused.value.message
    assert "depends on epoch boundaries" in refused.value.message


@pytest.mark.parametrize(
    ("verb", "advice"),
    [
        (lambda s, t: s.with_columns(total="sum(v)"), "key_by(..).aggregate(..)"),
        (lambda s, t: s.where("v > avg(v)"), "key_by(..).aggregate(..)"),
        (lambda s, t: s.where("row_number() OVER (ORDER BY v) = 1"), "key_by(..).top(..)"),
        (lambda s, t: s.select("k", "row_number() AS n"), "key_by(..).top(..)"),
    ],
)
def test_errors_of_spark_are_reported_with_the_operator(spark: SparkSession, verb: Verb, advice: str) -> None:
    pipeline = Pipeline("cut")
    verb(*read(pipeline)).write("out", console.sink())
    with pytest.raises(PipelineError) as refused:
        analyse(pipeline.graph(), spark)
    assert advice in refused.value.message and "OVER clause" not in refused.value.message


def test_verbs_that_compute_row_by_row_pass(spark: SparkSession) -> None:
    pipeline = Pipeline("cut")
    rows, names = read(pipeline)
    totals = names.transform(lambda frame: frame.groupBy("k").agg(SF.sum("w").alias("w")), "totals").select("k", "w")
    exploded = rows.select("k", "v", "at", "explode(a) AS each").transform(lambda frame: frame.sort("v"))
    joined = exploded.join(totals, "k", "left").union(rows.select("k", "v", "at", "a[0] AS each", "0L AS w"))
    sums = joined.key_by("k").aggregate("sums", v="sum(v)")
    sums.join(names, "k", "left_anti").with_columns(twice="v * 2").write("sums", console.sink())
    joined.map_pandas(lambda frames: frames, "k string, v bigint").write("rows", console.sink())
    analyse(pipeline.graph(), spark)


def test_names_in_messages_do_not_show_the_alias_of_the_check(spark: SparkSession) -> None:
    for verb in (
        lambda s, t: s.transform(lambda frame: frame.join(t_of(frame), SF.expr("v = w")).select("k"), "both"),
        lambda s, t: s.transform(lambda frame: frame.join(t_of(frame), SF.expr("v = w")).select("kk"), "both"),
        lambda s, t: s.where("explode(a) > 1"),
    ):
        pipeline = Pipeline("cut")
        verb(*read(pipeline)).write("out", console.sink())
        with pytest.raises(PipelineError) as refused:
            analyse(pipeline.graph(), spark)
        assert "_epochal" not in refused.value.message


def t_of(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame([], "k string, w bigint")


def test_per_epoch_gives_a_result_for_each_epoch(spark: SparkSession) -> None:
    pipeline = Pipeline("cut")
    rows, _ = read(pipeline)
    totals = rows.transform(lambda frame: frame.groupBy("k").agg(SF.sum("v").alias("v")), "totals", per_epoch=True)
    totals.where("v > 0").write("out", console.sink())
    graph = pipeline.graph()
    labels = [node.name for node in analyse(graph, spark).description.nodes if node.type == "transform"]
    assert labels == ["transform(totals, per_epoch=True)", "where(v > 0)"]
    with Harness(graph, spark) as test:
        shown: list[Any] = [test.epoch(rows=[row("a", 1), row("a", 2)]), test.epoch(rows=[row("a", 4)])]
        assert [each["out"].to_pylist() for each in shown] == [[{"k": "a", "v": 3}], [{"k": "a", "v": 4}]]
    with pytest.raises(PipelineError, match="per_epoch must be True or False, not 'yes'"):
        rows.transform(latest, per_epoch="yes")  # type: ignore[arg-type]


def test_per_epoch_does_not_apply_to_later_verbs(spark: SparkSession) -> None:
    pipeline = Pipeline("cut")
    rows, _ = read(pipeline)
    rows.transform(latest, per_epoch=True).select("max(v) AS v").write("out", console.sink())
    with pytest.raises(PipelineError, match=r"select\(max\(v\) AS v\) after source 'rows': an aggregate"):
        analyse(pipeline.graph(), spark)


def test_event_time_is_kept_by_a_transform_per_epoch(spark: SparkSession) -> None:
    pipeline = Pipeline("cut")
    rows, _ = read(pipeline)
    once = rows.with_watermark("at", "1 second").transform(lambda frame: frame.distinct(), per_epoch=True)
    once.key_by("k").window(tumbling("1 minute")).aggregate("n", n="count(*)").write("out", console.sink())
    analyse(pipeline.graph(), spark)


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v, "a": [1], "at": datetime(2020, 1, 1, tzinfo=UTC)}
