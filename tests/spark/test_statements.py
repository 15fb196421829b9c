"""Chains of verbs as one SQL statement give the rows of the verbs; other chains are evaluated verb by verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.contracts.source import PARTITION
from epochal.declarations.expressions import Expression
from epochal.declarations.sql_text import sql_text
from epochal.errors import PipelineError
from epochal.pipeline.evaluate import evaluate
from epochal.pipeline.graph import Graph, NodeId
from epochal.pipeline.statements import LEAST_VERBS, Statements, chains
from epochal.pipeline.stream import Stream

Verbs = Callable[[Stream], Stream]
DDL = "k string, v long, `of.a b` struct<x: int, y: string>"
ROWS = [("a", 1, (1, "p")), ("b", 2, (None, "q")), (None, 3, None), ("a", None, (4, "it's"))]


def graph_of(verbs: Verbs) -> Graph:
    pipeline = Pipeline("verbs")
    verbs(pipeline.read("rows", generator.source({"k": "id"}))).write("out", console.sink())
    return pipeline.graph()


def frame_of(graph: Graph, rows: DataFrame, statements: Statements | None, carrying: frozenset[NodeId]) -> DataFrame:
    frames = evaluate(
        graph,
        source=lambda node: rows,
        table=lambda node: rows,
        operator=lambda node, inputs: inputs[0],
        event_time=lambda node, frame: frame,
        side=lambda node: rows,
        loop=lambda node: rows,
        carrying=carrying,
        statements=statements,
    )
    return frames[graph.sinks[0].input]


def by_statement(verbs: Verbs, rows: DataFrame, carrying: bool = False) -> tuple[DataFrame, bool]:
    """The frame of the second epoch, and whether a statement made it. The frame equals that of the verbs."""
    graph = graph_of(verbs)
    nodes = frozenset(node.id for node in graph.nodes[:-1]) if carrying else frozenset()
    statements = Statements(graph, graph.needed)
    expected = frame_of(graph, rows, statements, nodes)
    found = frame_of(graph, rows, statements, nodes)
    assert found.dtypes == expected.dtypes
    assert found.collect() == expected.collect()
    return found, bool(statements.known)


def lengthened(verb: Verbs) -> Verbs:
    """The verb, then others until the chain is long enough for a statement."""

    def verbs(rows: Stream) -> Stream:
        found = verb(rows)
        for number in range(LEAST_VERBS):
            found = found.where(f"{number} >= 0")
        return found

    return verbs


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, DDL).cache()


@pytest.mark.parametrize(
    "verb",
    [
        lambda rows: rows.select("*"),
        lambda rows: rows.select("v", "k AS key", "`of.a b`.y", "v + 1 -- the next one", "upper(k)"),
        lambda rows: rows.select("explode(array(v, v)) AS each", "k"),
        lambda rows: rows.select(F.col("v"), (F.col("v") * 2 > 3).alias("large"), F.upper("k").alias("K2")),
        lambda rows: rows.where("v > 1 OR k IS NULL"),
        lambda rows: rows.where(F.col("k").isNotNull() & ~(F.col("v") == 2)),
        lambda rows: rows.with_columns(V="v * 2", more="v", k="coalesce(k, '')"),
        lambda rows: rows.with_columns(first="v + 1", second="first * 2"),
        lambda rows: rows.with_columns(none=F.lit(None).cast("int"), text=F.lit("x"), yes=F.lit(True)),
        lambda rows: rows.drop("v"),
        lambda rows: rows.with_column("v", "v + 1").with_column("v", "v + 1").drop("k").select("v AS k"),
    ],
)
def test_chained_verbs_become_one_sql_statement(verb: Verbs, rows: DataFrame) -> None:
    _, is_statement = by_statement(lengthened(verb), rows)
    assert is_statement


@pytest.mark.parametrize(
    "verb",
    [
        lambda rows: rows.where(F.col("k").rlike("a|b")),  # has no SQL text
        lambda rows: rows.where(F.regexp_replace("k", "a", "b") == "b"),  # "a" and "b" are no columns
        lambda rows: rows.select("v", "v", "k").with_columns(k="upper(k)"),  # the name is ambiguous
        lambda rows: rows.select("v").where("k = 'a'"),  # Spark resolves k below the selection
    ],
)
def test_verbs_with_another_meaning_in_sql_are_not_translated(verb: Verbs, rows: DataFrame) -> None:
    _, is_statement = by_statement(lengthened(verb), rows)
    assert not is_statement


def test_statement_keeps_the_partition_column(rows: DataFrame) -> None:
    frame, is_statement = by_statement(
        lengthened(lambda stream: stream.select("v", "k").with_columns(v="v + 1").select("*", "1 AS one")),
        rows.selectExpr("*", f"'p' AS {PARTITION}"),
        carrying=True,
    )
    assert is_statement
    assert frame.columns == ["v", "k", PARTITION, "one"]


def test_verb_reports_missing_columns(rows: DataFrame) -> None:
    graph = graph_of(lengthened(lambda stream: stream.where("v > 1")))
    statements = Statements(graph, graph.needed)
    frame_of(graph, rows, statements, frozenset())
    with pytest.raises(PipelineError, match=r"where\(v > 1\) after source 'rows': there is no column v"):
        frame_of(graph, rows.sparkSession.createDataFrame([("a",)], "k string"), statements, frozenset())
    assert frame_of(graph, rows, statements, frozenset()).collect()


def test_chain_ends_at_a_stream_with_other_readers() -> None:
    def verbs(rows: Stream) -> Stream:
        first = rows.where("1 = 1").where("2 = 2")
        one, other = first.where("3 = 3").where("4 = 4"), first.where("5 = 5").transform(lambda frame: frame)
        return one.union(other.where("6 = 6").where("7 = 7").where("8 = 8"))

    graph = graph_of(verbs)
    found = [[verb.label for verb in chain.nodes] for chain in chains(graph, graph.needed, least=2)]
    assert found == [
        ["where(1 = 1)", "where(2 = 2)"],
        ["where(3 = 3)", "where(4 = 4)"],
        ["where(6 = 6)", "where(7 = 7)", "where(8 = 8)"],
    ]
    assert not chains(graph, graph.needed, least=4)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (F.col("a.b"), "a.b\n"),
        ((F.col("a") + 1).alias("x y"), "((a\n) + (1)) AS `x y`"),
        (F.coalesce("a", F.lit("it's")), None),
        (F.sum("a", mode="x"), None),
        (F.col("a").cast("int") != F.lit(None), "(CAST((a\n) AS int) != NULL)"),
    ],
)
def test_expressions_are_translated_to_sql_text(expression: Any, text: str | None) -> None:
    assert isinstance(expression, Expression)
    assert sql_text(expression) == text
