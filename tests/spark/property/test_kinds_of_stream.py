"""The kind of a stream describes its rows: random pipelines and cuts into epochs, against Spark's batch result.

Append: the rows of all epochs are those of the batch. Upsert: an epoch has at most one row per key, and the newest
row of each key is that of the batch. Unit tests check that no kind is weaker than necessary.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, reduce

import pytest
from hypothesis import settings
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as SF

from epochal import Pipeline, Stream
from epochal.connectors import console, files, generator
from epochal.contracts.stream_kind import Kind, StreamKind
from epochal.errors import EpochalError, PipelineError
from epochal.operators.aggregate.plan import AggregateOperator
from epochal.pipeline.analysis import analyse
from epochal.pipeline.definitions import SinkDefinition, TableDefinition
from epochal.pipeline.evaluate import evaluate
from epochal.pipeline.graph import Graph, OperatorNode
from epochal.pipeline.kinds import check_kinds, kinds_of
from epochal.testing import Harness

PIPELINES, EPOCHS, ROWS, BATCH = settings.default.max_examples // 5, 2, 20, 0
SOURCE = ("k", "d", "v")
CHEAP = {
    # Hundreds of small plans over a few rows: compiling, shuffling and broadcasting would cost more than running them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}


class Author:
    """Random verbs over existing columns. All columns but ``city`` are numbers.

    ``careless``: also chooses verbs that submission refuses.
    """

    def __init__(self, spark: SparkSession, choose: random.Random, careless: bool = False) -> None:
        self.choose = choose
        self.careless = careless
        self.pipeline = Pipeline("random")
        stream = self.pipeline.read("rows", generator.source(dict.fromkeys(SOURCE, "id")))
        cities = spark.createDataFrame([(k, f"city {k % 2}") for k in range(3)], "k bigint, city string").coalesce(1)
        self.cities = self.pipeline.table("cities", TableDefinition("own", lambda spark: cities))
        columns = list(SOURCE)
        for _ in range(choose.randrange(3)):
            stream, columns = self.verb(stream, columns)
        for _ in range(choose.randrange(1, 3)):
            stream, columns = self.aggregate(stream, columns)
            for _ in range(choose.randrange(3)):
                stream, columns = self.verb(stream, columns)
        stream.write("out", self.sink())
        self.graph = self.pipeline.graph()

    def sink(self) -> SinkDefinition:
        if not self.careless:
            return console.sink()
        return self.choose.choice(
            [console.sink(), files.sink("/nowhere/out"), files.sink("/nowhere/out", format="csv")]
        )

    def aggregate(self, stream: Stream, columns: list[str]) -> tuple[Stream, list[str]]:
        nodes = Graph("so far", tuple(stream._builder.nodes))
        if kinds_of(nodes)[stream._node].kind is not Kind.APPEND and not (self.careless and self.choose.random() < 0.3):
            return stream, columns
        keys = self.choose.sample(columns, min(len(columns), self.choose.choice([1, 2])))
        values = {"n": "count(*)", "total": f"sum({self.choose.choice(self.numbers(columns) or ['1'])})"}
        if "k" in columns:
            values["k"] = "max(k)"
        values = {name: value for name, value in values.items() if name not in keys} or {"many": "count(*)"}
        return stream.key_by(*keys).aggregate(f"op{len(nodes.nodes)}", **values), [*keys, *values]

    def verb(self, stream: Stream, columns: list[str]) -> tuple[Stream, list[str]]:
        choose, column = self.choose, self.choose.choice(columns)
        numbers = self.numbers(columns)
        if self.careless and numbers and choose.random() < 0.15:
            value = choose.choice(["rand()", "unix_timestamp()", "nowhere", "array(1, 2)", "epoch_time()"])
            return stream.with_columns(**{choose.choice(numbers): value}), columns
        match choose.choice([0, 0, 0, 1, 2, 3, 4, 5, 5, 6, 7]):
            case 0:
                over = choose.choice(numbers) if numbers else None
                return stream.where(
                    f"{column} IS NOT NULL" if over is None else f"{over} % 2 = 1 OR {over} IS NULL"
                ), columns
            case 1:
                kept = choose.sample(columns, choose.randrange(1, len(columns) + 1))
                return stream.select(*kept), kept
            case 2 if f"{column}2" not in columns:
                renamed = [f"{name}2" if name == column else name for name in columns]
                return stream.select(*(f"{name} AS {new}" for name, new in zip(columns, renamed, strict=True))), renamed
            case 3 if numbers:
                number = choose.choice(numbers)
                return stream.with_columns(**{number: f"{number} % 2"}), columns
            case 4 if len(columns) > 1:
                return stream.drop(column), [name for name in columns if name != column]
            case 5 if "k" in columns and "city" not in columns:
                how = choose.choice(["left", "left", "inner", "left_semi", "left_anti"])
                return stream.join(self.cities, on="k", how=how), columns if "_" in how else [*columns, "city"]  # type: ignore[arg-type]
            case 6 if "x" not in columns:
                return stream.select("*", "explode(array(1, 2)) AS x"), [*columns, "x"]
            case 7:
                return stream.union(stream), columns
        return stream, columns

    def numbers(self, columns: list[str]) -> list[str]:
        return [name for name in columns if not name.startswith("city")]


def outputs(graph: Graph, rows: DataFrame) -> Iterator[DataFrame]:
    """The input of the sink in each epoch and for all rows (``BATCH``): columns ``epoch`` and ``row``, as JSON."""

    def frames(of: DataFrame, before: DataFrame | None = None) -> dict[int, DataFrame]:
        """``before``: all rows up to the epoch. An operator returns the keys of the epoch with their current values."""
        so_far = {} if before is None else frames(before)

        def operator(node: OperatorNode, inputs: list[DataFrame]) -> DataFrame:
            assert isinstance(node.operator, AggregateOperator)
            keys = list(node.operator.keys)
            if before is None:
                values = {a.name: str(a.expression) for a in node.operator.aggregations}
                return inputs[0].groupBy(*keys).agg(*(SF.expr(value).alias(name) for name, value in values.items()))
            touched = inputs[0].select(*(SF.col(key).alias(f"_{key}") for key in keys)).distinct()
            same = [SF.col(key).eqNullSafe(SF.col(f"_{key}")) for key in keys]
            return so_far[node.id].join(touched, reduce(lambda one, other: one & other, same), "left_semi")

        return evaluate(
            graph,
            source=lambda node: of,
            table=lambda node: node.read(rows.sparkSession),
            operator=operator,
            event_time=lambda node, frame: frame,
            side=lambda node: of,
            loop=lambda node: of,
        )

    sink = graph.sinks[0].id
    for epoch in range(1, EPOCHS + 1):
        slice, before = rows.where(f"epoch = {epoch}").drop("epoch"), rows.where(f"epoch <= {epoch}").drop("epoch")
        yield _written(frames(slice, before)[sink], epoch)
    yield _written(frames(rows.drop("epoch"))[sink], BATCH)


def _written(frame: DataFrame, epoch: int) -> DataFrame:
    row = SF.to_json(SF.struct("*"), {"ignoreNullFields": "false"})
    return frame.select(SF.lit(epoch).alias("epoch"), row.alias("row"))


def assert_is(kind: StreamKind, epochs: dict[int, list[str]], shown: str) -> None:
    batch = Counter(epochs[BATCH])
    written = [epochs.get(epoch, []) for epoch in range(1, EPOCHS + 1)]
    if kind.kind is Kind.APPEND:
        assert Counter(row for rows in written for row in rows) == batch, shown
    if kind.kind is Kind.UPSERT:
        newest: dict[tuple[object, ...], str] = {}
        for rows in written:
            values = {tuple(json.loads(row)[key] for key in kind.keys): row for row in rows}
            assert len(values) == len(rows), shown
            newest |= values
        assert Counter(newest.values()) == batch, shown


@pytest.mark.slow
@pytest.mark.alternating(2)
def test_rows_match_the_kind_of_their_stream(spark: SparkSession) -> None:
    choose = random.Random()
    seed = choose.randrange(2**32)
    choose.seed(seed)
    values = [
        (1 + number * EPOCHS // ROWS, *(choose.choice([None, 0, 1, 2, 3, 4]) for _ in SOURCE)) for number in range(ROWS)
    ]
    session = spark.newSession()
    for name, value in CHEAP.items():
        session.conf.set(name, value)
    rows = session.createDataFrame(values, "epoch int, k bigint, d bigint, v bigint").coalesce(1)
    graphs = [Author(session, choose).graph for _ in range(PIPELINES)]
    parts = [
        output.select(SF.lit(number).alias("graph"), "*")
        for number, graph in enumerate(graphs)
        for output in outputs(graph, rows)
    ]
    found: list[dict[int, list[str]]] = [{BATCH: []} for _ in graphs]
    for number, epoch, row in reduce(DataFrame.unionAll, parts).collect():
        found[number].setdefault(epoch, []).append(row)
    for graph, epochs in zip(graphs, found, strict=True):
        kind = kinds_of(graph)[graph.sinks[0].input]
        labels = [getattr(node, "label", None) or node.name for node in graph.nodes]  # type: ignore[union-attr]
        assert_is(kind, epochs, f"seed {seed}: {labels} is {kind}")


@pytest.mark.alternating(2)
def test_the_harness_refuses_exactly_what_submission_refuses(spark: SparkSession) -> None:
    """The messages are the same, too."""
    choose = random.Random()
    seed = choose.randrange(2**32)
    choose.seed(seed)

    def refusal(check: Callable[[], object]) -> tuple[type[EpochalError], str] | None:
        try:
            check()
        except EpochalError as error:
            return type(error), error.message
        return None

    refused = list[bool]()
    while len(refused) < PIPELINES * 2 or len(set(refused)) < 2:
        try:
            graph = Author(spark, choose, careless=True).graph
        except PipelineError:  # refused by a verb, before the graph is built
            continue
        submitted = refusal(partial(analyse, graph, spark, elsewhere=True))
        assert refusal(partial(Harness.check, graph, spark)) == submitted, f"seed {seed}"
        refused.append(submitted is not None)


@pytest.mark.alternating(2)
def test_rows_of_the_engine_match_the_kind_of_their_stream(spark: SparkSession) -> None:
    pipeline = Pipeline("p")
    rows = pipeline.read("rows", generator.source({"k": "id", "v": "id"}))
    totals = rows.key_by("k").aggregate("totals", n="count(*)", total="sum(v)")
    totals.where("k > 0").select("k AS key", "n").write("upsert", console.sink())
    totals.where("n < 2").write("updates", console.sink())
    graph = pipeline.graph()
    check_kinds(graph)
    kinds = {node.name: kinds_of(graph)[node.input] for node in graph.sinks}
    assert [str(kind) for kind in kinds.values()] == ["upsert(key)", "updates"]
    epochs: dict[int, list[str]] = {BATCH: ['{"key":1,"n":2}', '{"key":2,"n":1}']}
    with Harness(pipeline, spark) as test:
        for epoch, keys in enumerate([[0, 1], [1, 2], [0]], start=1):
            written = test.epoch(rows=[{"k": key, "v": 1} for key in keys])["upsert"].to_pylist()
            epochs[epoch] = [json.dumps(row, separators=(",", ":")) for row in written]
    assert_is(kinds["upsert"], epochs, "engine")
