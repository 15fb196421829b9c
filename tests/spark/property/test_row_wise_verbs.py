"""Verbs that pass the analysis give the same rows for every cut of the stream into epochs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as SF
from pyspark.sql.window import Window

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.errors import PipelineError
from epochal.pipeline.analysis import analyse
from epochal.pipeline.definitions import TableDefinition
from epochal.pipeline.evaluate import evaluate
from epochal.pipeline.graph import Graph
from epochal.pipeline.relation import StaticTable
from epochal.pipeline.stream import Stream
from tests.unit.property.every_type import few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = {"k": "cast(id % 3 AS string)", "v": "id", "a": "array(1, 2)"}
SCHEMA = "k string, v bigint, a array<int>"
TABLE = [("0", 1), ("1", 5), ("1", 7)]

Verb = Callable[[Stream, StaticTable], Stream]
"""All verbs keep the columns, so that they can be combined in any order."""

ROW_WISE: dict[str, Verb] = {
    "columns": lambda s, t: s.select("k", "v + 1 AS v", "a"),
    "a condition": lambda s, t: s.where("v % 3 <> 1"),
    "added": lambda s, t: s.with_columns(v="v * 2 - cast(k AS int)"),
    "exploded": lambda s, t: s.select("k", "explode(a) AS each", "a").select("k", "cast(each AS bigint) AS v", "a"),
    "in an array": lambda s, t: s.with_columns(v="aggregate(a, v, (total, each) -> total + each)"),
    "united": lambda s, t: s.union(s.where("v > 4")),
    "a table": lambda s, t: s.join(t, "k", "left").select("k", "coalesce(w, v) AS v", "a"),
    "a table's totals": lambda s, t: s.join(
        t.transform(lambda f: f.groupBy("k").agg(SF.sum("w").alias("w"))), "k"
    ).select("k", "v + w AS v", "a"),
    "sorted": lambda s, t: s.transform(lambda f: f.orderBy("v").repartition(2, "k")),
    "columns as rows": lambda s, t: s.transform(
        lambda f: f.select("k", "a", "v").unpivot(["k", "a"], ["v"], "name", "v").select("k", "v", "a")
    ),
    "joined in the function": lambda s, t: s.transform(
        lambda f: f.join(f.sparkSession.createDataFrame(TABLE, "k string, w bigint"), "k", "left_semi")
    ),
}

OVER_ROWS: dict[str, Verb] = {
    "a total": lambda s, t: s.select("max(k) AS k", "sum(v) AS v", "array(1) AS a"),
    "a rank": lambda s, t: s.with_columns(v="cast(row_number() OVER (PARTITION BY k ORDER BY v) AS bigint)"),
    "earlier": lambda s, t: s.with_columns(v="coalesce(lag(v) OVER (ORDER BY v), 0)"),
    "distinct": lambda s, t: s.transform(lambda f: f.distinct()),
    "limited": lambda s, t: s.transform(lambda f: f.orderBy("v").limit(2)),
    "itself": lambda s, t: s.transform(lambda f: f.join(f.select("v"), "v", "left_semi")),
    "averaged": lambda s, t: s.transform(lambda f: f.withColumn("v", SF.max("v").over(Window.partitionBy("k")))),
    "another's rows": lambda s, t: s.transform(
        lambda f: f.union(f.sparkSession.createDataFrame([("9", 9, [9])], SCHEMA))
    ),
}


def made(verbs: list[Verb]) -> Graph:
    pipeline = Pipeline("random")
    stream = pipeline.read("rows", generator.source(COLUMNS))
    read = TableDefinition("made", lambda spark: spark.createDataFrame(TABLE, "k string, w bigint"))
    table = pipeline.table("table", read)
    for verb in verbs:
        stream = verb(stream, table)
    stream.write("out", console.sink())
    return pipeline.graph()


def result(graph: Graph, rows: DataFrame) -> DataFrame:
    """The input of the sink of a graph without operators, for the rows of one epoch."""
    spark = rows.sparkSession

    def none(*_: object) -> DataFrame:
        raise AssertionError("the graph has sources, tables and verbs only")

    frames = evaluate(
        graph,
        source=lambda node: rows,
        table=lambda node: node.read(spark),
        operator=none,
        event_time=none,
        side=none,
        loop=none,
    )
    return frames[graph.sinks[0].id]


def counted(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter((row.k, row.v, tuple(row.a)) for row in frame.select("k", "v", "a").collect())


@few
@given(st.integers(0, 2**32))
def test_accepted_verbs_do_not_depend_on_the_cut_into_epochs(spark: SparkSession, seed: int) -> None:
    choose = random.Random(seed)
    names = choose.choices(
        [*ROW_WISE, *OVER_ROWS], [1] * len(ROW_WISE) + [0.4] * len(OVER_ROWS), k=choose.randint(1, 4)
    )
    graph = made([{**ROW_WISE, **OVER_ROWS}[name] for name in names])
    try:
        analyse(graph, spark)
    except PipelineError:
        assert OVER_ROWS.keys() & set(names), names
        return
    rows = [(str(choose.randrange(3)), choose.randrange(9), [choose.randrange(3)]) for _ in range(12)]
    cuts = sorted({0, len(rows), *choose.sample(range(1, len(rows)), choose.randint(1, 4))})
    epochs = [rows[first:last] for first, last in itertools.pairwise(cuts)]
    frames = [result(graph, spark.createDataFrame(epoch, SCHEMA)) for epoch in epochs]
    in_epochs = counted(reduce(lambda one, other: one.unionByName(other), frames))
    assert in_epochs == counted(result(graph, spark.createDataFrame(rows, SCHEMA))), (names, cuts)
