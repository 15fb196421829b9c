"""Operators with a Spark job of their own, and operators that are drained."""

from __future__ import annotations

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.engine.planner import job_shape
from epochal.pipeline.graph import Graph
from epochal.pipeline.stream import Stream


def new_pipeline() -> tuple[Pipeline, Stream]:
    pipeline = Pipeline("shapes")
    return pipeline, pipeline.read("rows", generator.source({"k": "id", "v": "id"}))


def names(graph: Graph, sinks: bool = True) -> tuple[set[str], set[str]]:
    shape = job_shape(graph, sinks)
    by_id = {node.id: node.name for node in graph.operators}
    return {by_id[id] for id in shape.shared}, {by_id[id] for id in shape.drained}


def test_a_linear_pipeline_is_one_job() -> None:
    pipeline, rows = new_pipeline()
    first = rows.key_by("k").aggregate("first", n="count(*)")
    first.where("n > 1").key_by("n").aggregate("second", m="count(*)").write("out", console.sink())
    assert names(pipeline.graph()) == (set(), set())


def test_an_operator_with_two_readers_behind_a_transform_is_shared() -> None:
    pipeline, rows = new_pipeline()
    counted = rows.key_by("k").aggregate("counted", n="count(*)").where("n > 0")
    counted.write("a", console.sink())
    counted.write("b", console.sink())
    assert names(pipeline.graph()) == ({"counted"}, set())


def test_a_shared_operator_reads_its_input_once() -> None:
    pipeline, rows = new_pipeline()
    first = rows.key_by("k").aggregate("first", n="count(*)")
    second = first.key_by("n").aggregate("second", m="count(*)")
    second.write("a", console.sink())
    second.write("b", console.sink())
    assert names(pipeline.graph()) == ({"second"}, set())


def test_unread_operators_are_drained_and_all_are_in_shadow_runs() -> None:
    pipeline, rows = new_pipeline()
    rows.key_by("k").aggregate("silent", n="count(*)")
    rows.key_by("k").aggregate("written", n="count(*)").write("out", console.sink())
    assert names(pipeline.graph()) == (set(), {"silent"})
    assert names(pipeline.graph(), sinks=False) == (set(), {"silent", "written"})
