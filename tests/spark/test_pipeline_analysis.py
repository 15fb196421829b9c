"""Analysis finds the errors of a pipeline over empty inputs, with place and fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyspark.sql.functions as SF
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import SparkSession

from epochal import KeyedProcess, ListState, MapState, Pipeline, StaticTable, Stream, ValueState
from epochal import functions as F
from epochal.connectors import console, delta, files, generator
from epochal.errors import EpochalError, PipelineError
from epochal.pipeline.analysis import Analysis, analyse
from epochal.pipeline.definitions import TableDefinition

COLUMNS = {
    "k": "cast(id AS string)",
    "n": "id",
    "x": "cast(id AS double)",
    "m": "map('a', id)",
    "t": "timestamp_seconds(id)",
}


class Counter(KeyedProcess):
    seen = ValueState("times bigint", queryable=False)
    recent = ListState("n bigint, t timestamp")
    by_minute = MapState(key="minute int", value="many int")
    output = "k string, times bigint, tags array<string>"
    order_by = ("t", "n")

    def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
        return []


def made(build: Callable[[Pipeline, Stream, StaticTable], object]) -> Pipeline:
    pipeline = Pipeline("p")
    rows = pipeline.read("rows", generator.source(COLUMNS))
    names = TableDefinition("made", lambda spark: spark.createDataFrame([("1", "one")], "k string, name string"))
    build(pipeline, rows, pipeline.table("names", names))
    return pipeline


def test_valid_pipeline_is_described(spark: SparkSession, tmp_path: Path) -> None:
    def build(pipeline: Pipeline, rows: Stream, names: StaticTable) -> None:
        some = rows.where(F.col("n") > 3).with_columns(double="n * 2", half=F.col("x") / 2).drop("m")
        counts = some.key_by("k").aggregate("counts", many=F.count("*"), mean=F.avg("n"))
        sink = files.sink(str(tmp_path / "out"), mode="updates")
        counts.join(names.where("name IS NOT NULL"), on="k", how="left").write("out", sink)
        again = counts.transform(
            lambda frame: frame.withColumn("n", SF.col("many")).withColumn("t", F.to_date(F.lit("2020-01-01")))
        )
        again.select("k", "n", "cast(t AS timestamp) AS t").key_by("k").process(Counter).write("look", console.sink())
        some.select("k").union(names_of(some), names_of(some)).write("all", console.sink())

    def names_of(stream: Stream) -> Stream:
        return stream.select(F.upper("k").alias("k"))

    analysis = analyse(made(build).graph(), spark)
    description = analysis.description
    columns = {node.name: node.columns for node in description.nodes if node.type != "transform"}
    assert columns["rows"] == {"k": "string", "n": "bigint", "x": "double", "m": "map<string,bigint>", "t": "timestamp"}
    assert columns["counts"] == {"k": "string", "many": "bigint", "mean": "double"}
    assert columns["out"] == {"k": "string", "many": "bigint", "mean": "double", "name": "string"}
    assert columns["counter"] == {"k": "string", "times": "bigint", "tags": "array<string>"}
    tables = {table.id: table for table in analysis.tables}
    assert list(tables) == ["counts", "counter.seen", "counter.recent", "counter.by_minute"]
    assert [column.name for column in tables["counter.recent"].full_key] == ["k", "_index"]
    assert [column.name for column in tables["counter.by_minute"].full_key] == ["k", "minute"]
    assert not tables["counter.seen"].queryable
    assert description.sinks["out"] == f"files:{tmp_path}/out"
    assert Analysis.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert type(description).model_validate_json(description.model_dump_json()) == description


class Twice(Counter):
    seen = ValueState("k bigint")


class Unordered(Counter):
    order_by = "time"


class Mistyped(Counter):
    output = "k string, times bigin"


class Doubled(Counter):
    output = "k string, K bigint"


@pytest.mark.parametrize(
    ("build", "place", "part"),
    [
        (
            lambda p, r, n: r.where("kk > 1"),
            "where(kk > 1) after source 'rows'",
            "there is no column kk; similar columns: k",
        ),
        (lambda p, r, n: r.with_columns(y="n +"), "with_columns(y)", "Syntax error"),
        (lambda p, r, n: r.drop("nn"), "drop(nn)", "Did you mean 'n'?"),
        (lambda p, r, n: r.select(F.uper("k")), "select(uper(k))", "Did you mean 'upper'?"),
        (lambda p, r, n: r.transform(lambda frame: frame.select("zz"), label="mine"), "transform(mine)", "column zz"),
        (lambda p, r, n: r.transform(lambda frame: 1 / 0), "transform(<lambda>)", "ZeroDivisionError"),
        (lambda p, r, n: r.transform(lambda frame: None), "transform(<lambda>)", "Return a DataFrame"),
        (lambda p, r, n: r.select("k").union(r.select("n")), "union", "there is no column 'k'"),
        (lambda p, r, n: r.join(n, on="n"), "join(n)", "the joined table"),
        (lambda p, r, n: r.key_by("x").aggregate("a", c="count(*)"), "Operator 'a'", "cast it to decimal"),
        (lambda p, r, n: r.key_by("m").aggregate("a", c="count(*)"), "Operator 'a'", "cannot be a key"),
        (lambda p, r, n: r.key_by("kk").aggregate("a", c="count(*)"), "Operator 'a', key", "Did you mean 'k'?"),
        (lambda p, r, n: r.key_by("k").process(Twice), "Operator 'twice'", "has a column 'k'"),
        (lambda p, r, n: r.key_by("k").process(Unordered), "Operator 'unordered', order_by", "no column 'time'"),
        (lambda p, r, n: r.key_by("k").process(Mistyped), "Operator 'mistyped', output", "BIGIN"),
        (lambda p, r, n: r.key_by("k").process(Doubled), "Operator 'doubled', output", "twice"),
        (lambda p, r, n: r.with_columns(_kg="n").key_by("k").process(Counter), "Operator 'counter'", "'_kg'"),
        (lambda p, r, n: r.select("k", "n", "n"), "Sink 'last'", "two columns named 'n'"),
        (
            lambda p, r, n: p.read("lost", files.source("/nowhere/at/all", "json", "a int")),
            "Source 'lost'",
            "/nowhere/at/all. Create it",
        ),
        (
            lambda p, r, n: p.read("odd", files.source("/", "json", "a integr")),
            "Source 'odd'",
            "The schema of / cannot be read",
        ),
    ],
)
def test_errors_are_reported_with_place_and_fix(
    spark: SparkSession, build: Callable[[Pipeline, Stream, StaticTable], Stream], place: str, part: str
) -> None:
    def written(pipeline: Pipeline, rows: Stream, names: StaticTable) -> None:
        rows.write("rows", console.sink())
        build(pipeline, rows, names).write("last", console.sink())

    graph = made(written).graph()
    with pytest.raises(EpochalError) as caught:
        analyse(graph, spark)
    assert caught.value.message.startswith(place)
    assert part in caught.value.message
    assert "\n" not in caught.value.message


def test_kinds_of_stream_are_checked_before_sources_are_read(spark: SparkSession) -> None:
    def over_updates(pipeline: Pipeline, rows: Stream, names: StaticTable) -> None:
        rows.write("rows", console.sink())
        nowhere = pipeline.read("nowhere", files.source("/nowhere/at/all", "json", "a int"))
        nowhere.key_by("a").aggregate("counts", n="count(*)").write("out", files.sink("/nowhere/either"))

    with pytest.raises(PipelineError, match=r"Sink 'out' accepts append, but operator 'counts' returns upsert\(a\)"):
        analyse(made(over_updates).graph(), spark)


def test_sinks_check_their_columns_and_must_not_share_a_target(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "out")

    def wrong_column(pipeline: Pipeline, rows: Stream, names: StaticTable) -> None:
        rows.select("n AS epoch").write("out", files.sink(folder))

    def nested(pipeline: Pipeline, rows: Stream, names: StaticTable) -> None:
        rows.select("m").write("out", files.sink(folder, format="csv"))

    def shared(pipeline: Pipeline, rows: Stream, names: StaticTable) -> None:
        rows.select("n").write("one", files.sink(folder))
        rows.select("n").write("two", files.sink(folder + "/"))

    for build, part in (
        (wrong_column, "Sink 'out': The files sink"),
        (nested, "CSV cannot hold column 'm'"),
        (shared, "Sinks 'one' and 'two' write to the same target"),
    ):
        with pytest.raises(EpochalError) as caught:
            analyse(made(build).graph(), spark)
        assert part in caught.value.message


def test_warnings_about_the_table_of_a_sink_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    """A sink that is not connected has none, since it reads nothing."""
    table = str(tmp_path / "orders")
    DeltaTable.create(
        table,
        Schema.from_arrow(pa.schema([pa.field("n", pa.int64())])),
        configuration={"delta.deletedFileRetentionDuration": "interval 1 hour"},
    )
    pipeline = Pipeline("p")
    pipeline.read("rows", generator.source({"n": "id"})).write("out", delta.sink(table))
    (warning,) = analyse(pipeline.graph(), spark).description.warnings
    assert warning.startswith("Sink 'out' (delta:") and "'interval 1 hour'" in warning
    assert analyse(pipeline.graph(), spark, connected=False).description.warnings == ()
