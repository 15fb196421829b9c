"""DataFrames over the rows of one epoch, and their explained plans in each supported version of Spark.

``python -m tests.kit.epoch_plans`` records the plans of the installed version in ``tests/spark/formats/plans/``; it
requires only pyspark. ``tests/spark/test_row_wise.py`` reads them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

RECORDED = Path(__file__).parents[1] / "spark" / "formats" / "plans"
COLUMNS = "k string, v bigint, a array<int>, at timestamp"

MakeFrame = Callable[[DataFrame, DataFrame], DataFrame]
"""Function from a stream's rows and a table to a DataFrame. In SQL text they are ``events`` and ``lookup``."""


def sql(text: str) -> MakeFrame:
    def make_frame(stream: DataFrame, table: DataFrame) -> DataFrame:
        spark = stream.sparkSession
        stream.createOrReplaceTempView("events")
        table.createOrReplaceTempView("lookup")
        try:
            return spark.sql(text)
        finally:
            spark.catalog.dropTempView("events")
            spark.catalog.dropTempView("lookup")

    return make_frame


def _totals(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").alias("total"))


ALLOWED: dict[str, MakeFrame] = {
    "columns": lambda s, t: s.select("k", (F.col("v") + 1).alias("v")),
    "a condition": lambda s, t: s.where("v > 3"),
    "a condition with a line that looks like a node": lambda s, t: s.where("k = 'a\n  +- Aggregate'"),
    "rows from an array": lambda s, t: s.select("k", F.explode("a").alias("each")),
    "a lateral view": sql("SELECT * FROM events LATERAL VIEW OUTER explode(a) AS each"),
    "a sum over an array": sql("SELECT k, (SELECT max(each) FROM explode(events.a) AS x(each)) AS m FROM events"),
    "a lateral subquery of the row": sql(
        "SELECT k, m FROM events, LATERAL (SELECT max(each) AS m FROM explode(events.a) AS x(each))"
    ),
    "an order": lambda s, t: s.orderBy("v"),
    "partitions": lambda s, t: s.repartition(3).repartition("k").coalesce(1),
    "a hint": lambda s, t: s.hint("broadcast"),
    "columns as rows": lambda s, t: s.select("k", "v").unpivot(["k"], ["v"], "name", "value"),
    "a window of time": lambda s, t: s.select(F.window("at", "5 minutes").alias("w")),
    "a column of a column": lambda s, t: s.selectExpr("v + 1 AS b", "b + 1 AS c"),
    "a function over batches": lambda s, t: s.mapInPandas(lambda rows: rows, s.schema),
    "a function over Arrow": lambda s, t: s.mapInArrow(lambda rows: rows, s.schema),
    "a union with itself": lambda s, t: s.unionByName(s.where("v > 3")),
    "a common table expression": sql("WITH c AS (SELECT k, v + 1 AS v FROM events) SELECT * FROM c WHERE v > 3"),
    "a table": lambda s, t: s.join(t, "k"),
    "a table, left": lambda s, t: s.join(t, "k", "left"),
    "a table, anti": lambda s, t: s.join(t, "k", "left_anti"),
    "a table on the left": lambda s, t: t.join(s, "k", "right"),
    "an aggregate of a table": lambda s, t: s.join(t.groupBy("k").count().limit(3), "k"),
    "a rank in a table": lambda s, t: s.join(
        t.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("w"))), "k", "left"
    ),
    "values": sql("SELECT events.*, c FROM events, VALUES (1), (2) AS x(c)"),
    "a key in a table": sql("SELECT * FROM events WHERE k IN (SELECT k FROM lookup WHERE w > 1)"),
    "an extreme of a table": sql("SELECT * FROM events WHERE v > (SELECT avg(w) FROM lookup)"),
    "a recursion over numbers": sql(
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) "
        "SELECT events.* FROM events JOIN r ON v = n"
    ),
}

REFUSED: dict[str, tuple[MakeFrame, str]] = {
    "an aggregate": (lambda s, t: s.selectExpr("sum(v) AS total"), "aggregate"),
    "an aggregate by key": (lambda s, t: _totals(s), "aggregate"),
    "a rollup": (lambda s, t: s.rollup("k").count(), "aggregate"),
    "a pivot": (lambda s, t: s.groupBy("k").pivot("v", [1, 2]).count(), "aggregate"),
    "a having": (sql("SELECT k, count(*) AS n FROM events GROUP BY k HAVING count(*) > 1"), "aggregate"),
    "a session": (lambda s, t: s.groupBy(F.session_window("at", "5 minutes")).count(), "aggregate"),
    "a rank": (lambda s, t: s.selectExpr("row_number() OVER (PARTITION BY k ORDER BY v) AS n"), "window function"),
    "an earlier row": (lambda s, t: s.withColumn("b", F.lag("v").over(Window.orderBy("at"))), "window function"),
    "a running sum": (lambda s, t: s.withColumn("b", F.sum("v").over(Window.partitionBy("k"))), "window function"),
    "distinct rows": (lambda s, t: s.select("k").distinct(), "duplicates"),
    "distinct rows in SQL": (sql("SELECT DISTINCT k FROM events"), "duplicates"),
    "duplicates": (lambda s, t: s.dropDuplicates(["k"]), "duplicates"),
    "a union without duplicates": (sql("SELECT k FROM events UNION SELECT k FROM events"), "duplicates"),
    "a limit": (lambda s, t: s.limit(3), "limit"),
    "a limit in an order": (lambda s, t: s.orderBy("v").limit(3), "limit"),
    "an offset": (lambda s, t: s.offset(1), "offset"),
    "an intersection": (lambda s, t: s.select("k").intersect(s.select("k")), "sets"),
    "a difference": (lambda s, t: s.select("k").subtract(t.select("k")), "sets"),
    "a difference of all": (lambda s, t: s.select("k").exceptAll(s.select("k")), "sets"),
    "itself": (lambda s, t: s.join(s.select("k", F.col("v").alias("u")), "k"), "a join"),
    "its totals": (lambda s, t: s.join(_totals(s), "k"), "aggregate"),
    "its totals, as a common table expression": (
        sql("WITH c AS (SELECT k, sum(v) AS n FROM events GROUP BY k) SELECT events.* FROM events JOIN c USING (k)"),
        "aggregate",
    ),
    "itself, as a common table expression": (
        sql("WITH c AS (SELECT k, v + 1 AS v FROM events) SELECT c.k, d.v FROM c JOIN c AS d ON c.k = d.k"),
        "a join",
    ),
    "an extreme of its own": (sql("SELECT * FROM events WHERE v > (SELECT avg(v) FROM events)"), "aggregate"),
    "another row of its own": (
        sql("SELECT * FROM events WHERE EXISTS (SELECT 1 FROM events AS y WHERE y.k = events.k AND y.v > 3)"),
        "subquery",
    ),
    "a key of its own": (sql("SELECT * FROM events WHERE k IN (SELECT k FROM events WHERE v > 3)"), "subquery"),
    "a lateral subquery of its own": (
        sql("SELECT events.k, y.v FROM events, LATERAL (SELECT v FROM events AS x WHERE x.k = events.k) AS y"),
        "a join",
    ),
    "a function over groups": (lambda s, t: s.groupBy("k").applyInPandas(lambda rows: rows, s.schema), "groups"),
    "a function over groups of two": (
        lambda s, t: s.groupBy("k").cogroup(t.groupBy("k")).applyInPandas(lambda rows, other: rows, s.schema),
        "groups",
    ),
    "a table's rows, full": (lambda s, t: s.join(t, "k", "full"), "repeated in every epoch"),
    "a table's rows, right": (lambda s, t: s.join(t, "k", "right"), "repeated in every epoch"),
    "a table's rows, left": (lambda s, t: t.join(s, "k", "left"), "repeated in every epoch"),
    "a table's rows without": (lambda s, t: t.join(s, "k", "left_anti"), "repeated in every epoch"),
    "a table's rows, united": (lambda s, t: s.select("k").union(t.select("k")), "repeated in every epoch"),
    "a table's rows alone": (lambda s, t: t, "does not compute"),
    "a recursion over its rows": (
        sql(
            "WITH RECURSIVE r AS (SELECT v AS n FROM events UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r"
        ),
        "UnionLoop",
    ),
}


def version() -> str:
    """Return Spark's version without its last part; patch releases have the same plans."""
    return ".".join(pyspark.__version__.split(".")[:2])


def explained(spark: SparkSession, make_frame: MakeFrame) -> str:
    """Return the plan that the installed version explains, requested as ``epochal.pipeline.row_wise`` does."""
    stream = spark.createDataFrame([], COLUMNS).alias("_epochal_stream")
    table = spark.createDataFrame([], "k string, w bigint")
    shown = io.StringIO()
    with redirect_stdout(shown):
        make_frame(stream, table).alias("_epochal_end").limit(0).explain(extended=True)
    return shown.getvalue()


def _record() -> None:
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    every = {**ALLOWED, **{name: make_frame for name, (make_frame, _) in REFUSED.items()}}
    plans = {name: explained(spark, make_frame).partition("== Optimized")[0] for name, make_frame in every.items()}
    RECORDED.mkdir(parents=True, exist_ok=True)
    (RECORDED / f"{version()}.json").write_text(json.dumps(plans, indent=1) + "\n")
    spark.stop()


if __name__ == "__main__":
    _record()
