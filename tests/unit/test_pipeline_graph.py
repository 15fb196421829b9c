"""Building a pipeline without Spark: nodes, names and immediate refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from epochal import BatchFunction, KeyedProcess, MapState, Pipeline, Stream, ValueState
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.errors import PipelineError, SchemaError
from epochal.operators.process.plan import ProcessOperator
from epochal.pipeline.description import describe
from epochal.pipeline.graph import SinkNode, TransformNode, inputs


class LateStreaks(KeyedProcess):
    minutes = 15
    current = ValueState("streak int, since timestamp")
    carriers = MapState(key="carrier string", value="late long")
    output = "tail string, streak int"
    order_by = "time"

    def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
        yield key.tail, self.minutes


class Totals(BatchFunction):
    totals = ValueState("total bigint")
    output = "tail string, total bigint"

    def process_batch(self, batch, states, ctx):  # type: ignore[no-untyped-def]
        return batch


def started() -> tuple[Pipeline, Stream]:
    pipeline = Pipeline("flights")
    return pipeline, pipeline.read("flights", generator.source({"tail": "id", "delay": "id"}))


def test_the_graph_has_the_authors_nodes_in_order() -> None:
    pipeline, flights = started()
    late = flights.where(F.col("delay") > 15)
    delays = late.key_by("tail").aggregate("delays", flights=F.count("*"), worst="max(delay)")
    late.key_by("tail").process(LateStreaks, minutes=30).write("alerts", console.sink())
    delays.write("out", console.sink())
    late.key_by("tail").process_batch(Totals, name="totals")
    graph = pipeline.graph()
    assert [node.name for node in graph.sources] == ["flights"]
    assert [node.name for node in graph.operators] == ["delays", "late_streaks", "totals"]
    assert [node.name for node in graph.sinks] == ["alerts", "out"]
    transform = next(node for node in graph.nodes if isinstance(node, TransformNode))
    assert transform.label == "where((delay > 15))"
    assert len(graph.consumers(transform.id)) == 3
    assert all(id < node.id for node in graph.nodes for id in inputs(node))
    assert [node.operator.kind for node in graph.operators] == ["aggregate", "process", "process_batch"]
    assert sum(isinstance(node, SinkNode) for node in graph.nodes) == 2


def test_settings_subclass_the_process_and_leave_the_original_unchanged() -> None:
    pipeline, flights = started()
    flights.key_by("tail").process(LateStreaks, minutes=30)
    operator = pipeline.graph().operators[0].operator
    assert isinstance(operator, ProcessOperator)
    process = operator.process
    assert (process.minutes, LateStreaks.minutes) == (30, 15)  # type: ignore[attr-defined]
    assert issubclass(process, LateStreaks)


def test_description_is_plain_data_with_targets() -> None:
    pipeline, flights = started()
    flights.key_by("tail").aggregate("delays", mean=F.avg("delay")).write("out", console.sink())
    description = describe(pipeline.graph())
    assert description.sinks == {"out": "console:"}
    aggregate = next(node for node in description.nodes if node.type == "aggregate")
    assert aggregate.description == {"keys": ["tail"], "columns": {"mean": "avg(delay)"}}
    assert type(description).model_validate_json(description.model_dump_json()) == description


def test_building_and_describing_needs_neither_pyspark_nor_java() -> None:
    code = """
import sys
from epochal import Pipeline, functions as F
from epochal.connectors import files
from epochal.pipeline.description import describe
pipeline = Pipeline("p")
stream = pipeline.read("s", files.source("data", format="json", schema="k string, x int"))
stream.key_by("k").aggregate("a", mean=F.avg("x")).write("out", files.sink("out", mode="updates"))
assert describe(pipeline.graph()).sinks["out"].endswith("/out")
assert "pyspark" not in sys.modules, "pyspark was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def refused(build: Callable[[Pipeline, Stream], object]) -> str:
    def built() -> None:
        pipeline, flights = started()
        build(pipeline, flights)
        pipeline.graph()

    with pytest.raises((PipelineError, SchemaError)) as caught:
        built()
    return caught.value.message


def test_names_are_unique_and_well_formed() -> None:
    source = generator.source({"a": "id"})
    assert "Two sources are named 'flights'" in refused(lambda p, s: p.read("flights", source))
    assert "Two operators are named 'x'" in refused(
        lambda p, s: [s.key_by("tail").aggregate("x", n="count(*)") for _ in range(2)]
    )
    assert "Two sinks are named 'x'" in refused(lambda p, s: [s.write("x", console.sink()) for _ in range(2)])
    for name in ("Big", "1st", "with space", "", "a" * 64):
        assert "cannot be the name of a sink" in refused(lambda p, s, name=name: s.write(name, console.sink()))  # type: ignore[misc]


def test_a_pipeline_without_state_sink_or_source_is_refused() -> None:
    assert "has neither state nor a sink" in refused(lambda p, s: s.where("delay > 1"))
    assert "has no source" in refused(lambda p, s: Pipeline("empty").graph())
    unused = generator.source({"a": "id"})
    assert "Source 'other' is not used" in refused(
        lambda p, s: (s.write("out", console.sink()), p.read("other", unused))
    )


def test_keys_must_be_distinct_column_names() -> None:
    assert "at least one column" in refused(lambda p, s: s.key_by())
    assert "twice" in refused(lambda p, s: s.key_by("tail", "TAIL"))
    assert "with_columns()" in refused(lambda p, s: s.key_by(F.col("tail")))  # type: ignore[arg-type]


def test_errors_of_wrong_arguments_name_the_fix() -> None:
    assert "connectors" in refused(lambda p, s: s.write("out", "folder"))  # type: ignore[arg-type]
    assert "connectors" in refused(lambda p, s: p.read("other", "folder"))  # type: ignore[arg-type]
    assert "pipeline.table" in refused(lambda p, s: s.join("names", on="tail"))  # type: ignore[arg-type]
    assert "same pipeline" in refused(lambda p, s: s.union(started()[1]))
    assert "use SQL text" in refused(lambda p, s: s.where(3))  # type: ignore[arg-type]
    assert "is empty" in refused(lambda p, s: s.with_columns(x=" "))


def test_process_classes_are_checked_when_the_pipeline_is_built() -> None:
    class NoOutput(KeyedProcess):
        def process(self, key, rows, ctx):  # type: ignore[no-untyped-def]
            return []

    class NoProcess(KeyedProcess):
        output = "a int"

    class NestedState(LateStreaks):
        current = ValueState("xs array<interval>")

    class BadState(LateStreaks):
        current = ValueState("streak")

    def refused_process(process: object, **settings: object) -> str:
        return refused(lambda p, s: s.key_by("tail").process(process, **settings))  # type: ignore[arg-type]

    assert "Operator 'no_output'" in refused_process(NoOutput)
    assert "must define" in refused_process(NoProcess)
    assert "make_dt_interval" in refused_process(NestedState)
    assert "'streak' is not a column" in refused_process(BadState)
    assert "Pass the class itself" in refused_process(LateStreaks())
    assert "Did you mean 'minutes'?" in refused_process(LateStreaks, minute=3)
    assert "no setting 'current'" in refused_process(LateStreaks, current=3)


def test_state_is_accessible_only_while_a_key_is_processed() -> None:
    with pytest.raises(PipelineError, match="only available while a key is processed"):
        _ = LateStreaks().current
