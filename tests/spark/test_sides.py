"""Side outputs: declarations, refusals, and rows from every kind of author's function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import BatchFunction, BroadcastProcess, KeyedProcess, ListState, Pipeline, To, UnkeyedProcess, ValueState
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.contracts.stream_kind import APPEND
from epochal.engine.planner import job_shape
from epochal.errors import EpochAborted, PipelineError, SchemaError
from epochal.pipeline.description import describe
from epochal.pipeline.graph import SideNode
from epochal.pipeline.stream import Stream
from epochal.testing import Harness

ALERT = "user string, reason string"


class Alerts(KeyedProcess):
    count = ValueState("rows bigint")
    output = "user string, amount bigint"
    sides: ClassVar = {"alerts": ALERT, "counts": "`rows.so far` bigint"}

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            if row.amount > 100:
                yield To("alerts", {"user": key.user, "reason": "amount"})
            else:
                yield key.user, row.amount
        self.count.set((self.count.get() or 0) + len(rows))
        yield To("counts", (self.count.get(),))


class Dealt(UnkeyedProcess):
    seen = ListState("user string", scope="operator")
    output = "user string"
    sides: ClassVar = {"alerts": ALERT}

    def process(self, rows: Any, ctx: Any) -> Iterator[Any]:
        for row in rows:
            yield To("alerts", (row.user, "dealt")) if row.amount > 100 else (row.user,)


class Steered(BroadcastProcess):
    output = "user string"
    sides: ClassVar = {"alerts": ALERT}

    def process_broadcast(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield To("alerts", (row.user, "control"))

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        yield To("alerts", (key.user, "steered"))


class Batches(BatchFunction):
    output = "user string, amount bigint"
    sides: ClassVar = {"alerts": ALERT}

    def process_batch(self, batch: pa.Table, states: Mapping[str, Any], ctx: Any) -> Iterator[Any]:
        large = pa.compute.greater(batch["amount"], 100)
        yield batch.filter(pa.compute.invert(large))
        users = batch.filter(large).select(["user"])
        yield To("alerts", users.append_column("reason", pa.array(["batch"] * len(users), pa.string())))


def started() -> tuple[Pipeline, Stream]:
    pipeline = Pipeline("sides")
    return pipeline, pipeline.read("rows", generator.source({"user": "cast(id AS string)", "amount": "id"}))


def shape(pipeline: Pipeline) -> tuple[list[str], list[str], list[str]]:
    """Shared operators, drained operators, and unread operators and sides."""
    graph = pipeline.graph()
    found = job_shape(graph, sinks=True)

    def name(id: int) -> str:
        node = graph.node(id)
        return node.side if isinstance(node, SideNode) else getattr(node, "name", "")

    return [name(id) for id in found.shared], [name(id) for id in found.drained], sorted(map(name, found.unread))


@pytest.mark.alternating(3)
def test_every_kind_of_function_can_write_to_sides(spark: SparkSession) -> None:
    pipeline, rows = started()
    alerts = rows.key_by("user").process(Alerts)
    alerts.where("amount > 1").write("small", console.sink())
    alerts.side("alerts").select("user", "upper(reason) AS reason").write("alerts", console.sink())
    alerts.side("alerts").key_by("user").aggregate("alerted", times="count(*)").write("alerted", console.sink())
    counts = rows.key_by("user").process(Alerts, "counting").side("counts")
    counts.write("counts", console.sink())
    rows.process_any(Dealt).side("alerts").write("dealt", console.sink())
    steered = rows.connect(rows.where("amount = 5"), broadcast=True, order_by="user").key_by("user").process(Steered)
    steered.side("alerts").write("steered", console.sink())
    batches = rows.key_by("user").process_batch(Batches)
    batches.write("batches", console.sink())
    batches.side("alerts").write("batch_alerts", console.sink())
    with Harness(pipeline, spark, Configuration(parallelism=2, max_parallelism=4)) as test:
        test.epoch(rows=[("a", 1), ("a", 200), ("b", 5)])
        given = {
            name: sorted(map(tuple, (row.values() for row in table.to_pylist())))
            for name, table in test.epoch(rows=[("a", 300), ("b", 7), ("c", 5)]).items()
        }
        assert {row["user"]: row["times"] for row in test.state("alerted").to_pylist()} == {"a": 2}
    assert given == {
        "small": [("b", 7), ("c", 5)],
        "alerts": [("a", "AMOUNT")],
        "alerted": [("a", 2)],
        "counts": [(1,), (2,), (3,)],
        "dealt": [("a", "dealt")],
        "steered": [("a", "steered"), ("b", "steered"), ("c", "control"), ("c", "steered")],
        "batches": [("b", 7), ("c", 5)],
        "batch_alerts": [("a", "batch")],
    }


def test_undeclared_side_is_refused_with_key_and_similar_name(spark: SparkSession) -> None:
    class Wrong(KeyedProcess):
        output = "user string"
        sides: ClassVar = {"alerts": ALERT}
        to = "alert"

        def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
            yield To(self.to, (key.user, "x", 1))

    class Undeclared(KeyedProcess):
        output = "user string"

        def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
            yield To("alerts", (key.user,))

    def failure(process: type[KeyedProcess], **settings: str) -> str:
        pipeline, rows = started()
        rows.key_by("user").process(process, **settings)
        with Harness(pipeline, spark) as test, pytest.raises((EpochAborted, SchemaError)) as failed:
            test.epoch(rows=[("a", 1)])
        return failed.value.message

    unknown = failure(Wrong)
    assert "Operator 'wrong', key (user='a')" in unknown
    assert "sent a row to side 'alert', ('a', 'x', 1)" in unknown
    assert "declares the sides alerts. Did you mean 'alerts'?" in unknown
    assert "('a', 'x', 1). Its side 'alerts' is declared as: user string, reason string." in failure(Wrong, to="alerts")
    assert 'add sides = {"alerts": "column type, .."} to it' in failure(Undeclared)


def test_invalid_sides_are_refused() -> None:
    def refused(sides: Any) -> str:
        _, rows = started()
        with pytest.raises(PipelineError) as error:
            rows.key_by("user").process(type("Sided", (Alerts,), {"sides": sides}))
        return error.value.message

    assert "Operator 'sided': Sided cannot have a side output named 'late'" in refused({"late": "a int"})
    assert "cannot have a side output named 'rejected'" in refused({"rejected": "a int"})
    assert "'Alerts' cannot be the name of a side output of Sided" in refused({"Alerts": "a int"})
    assert "side 'alerts' of Sided has no columns" in refused({"alerts": " "})
    assert "map the name of each side to its columns" in refused("alerts")
    assert "has 101 sides; the maximum is 100" in refused({f"s{n}": "a int" for n in range(101)})


def test_side_is_read_directly_on_its_operator() -> None:
    _, rows = started()
    alerts = rows.key_by("user").process(Alerts)
    with pytest.raises(PipelineError, match=r"'alerts' has no side output 'alert'.* Did you mean 'alerts'\?"):
        alerts.side("alert")
    with pytest.raises(PipelineError, match="directly on it, before any other verb"):
        alerts.where("amount > 1").side("alerts")
    with pytest.raises(PipelineError, match="declares none in sides"):
        rows.key_by("user").aggregate("n", n="count(*)").side("alerts")


def test_columns_of_sides_are_checked_by_spark(spark: SparkSession) -> None:
    pipeline, rows = started()
    rows.key_by("user").process(type("Sided", (Alerts,), {"sides": {"alerts": "_mark int"}})).side("alerts")
    with pytest.raises(PipelineError, match="Operator 'sided', side 'alerts' '_mark int': column '_mark'"):
        Harness(pipeline, spark)


def test_an_operator_whose_output_and_side_are_read_runs_once() -> None:
    pipeline, rows = started()
    alerts = rows.key_by("user").process(Alerts)
    assert shape(pipeline)[:2] == ([], ["alerts"])
    alerts.side("alerts").write("a", console.sink())
    assert shape(pipeline) == ([], [], ["alerts"])
    alerts.side("counts")
    assert shape(pipeline) == ([], [], ["alerts", "counts"])
    alerts.write("b", console.sink())
    assert shape(pipeline) == (["alerts"], [], ["counts"])


def test_description_shows_sides_and_warns_of_unused_ones() -> None:
    pipeline, rows = started()
    alerts = rows.key_by("user").process(Alerts)
    alerts.side("alerts").write("a", console.sink())
    described = describe(pipeline.graph())
    operator, side = described.nodes[1:3]
    assert operator.description["sides"] == ["alerts", "counts"]
    assert (side.name, side.type, side.inputs, side.stream) == ("alerts", "side", (operator.id,), APPEND)
    (warning,) = described.warnings
    assert warning.startswith("Operator 'alerts': its side output 'counts' is not used, so that its rows are dropped.")
