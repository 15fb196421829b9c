"""Two versions compared by name: operators of every kind."""

from __future__ import annotations

import pytest

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.pipeline.description import GraphDescription, describe
from epochal.service.domain.comparison import NO_OPERATORS, compared
from tests.spark.operators.every_operator import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators_of_every_kind_are_reported_as_added(case: Case) -> None:
    pipeline = case.pipeline()
    graph = describe(pipeline.graph())
    kinds = {node.name: node.type for node in graph.nodes if node.type not in NO_OPERATORS}
    without = graph.model_copy(update={"nodes": tuple(node for node in graph.nodes if node.name not in kinds)})
    assert {part.name: part.after for part in compared(without, graph, None).operators} == kinds
    assert {part.verdict for part in compared(without, graph, None).operators} == {"added"}
    assert {part.verdict for part in compared(graph, graph, None).operators} == {"same"}


def test_declarations_of_event_time_are_compared_by_name() -> None:
    def version(**delays: str) -> GraphDescription:
        pipeline = Pipeline("times")
        rows = pipeline.read("rows", generator.source({"ts": "timestamp_seconds(id)"}))
        for name, delay in delays.items():
            rows.with_watermark("ts", delay, name=name).write(name, console.sink())
        rows.write("rows", console.sink())
        return describe(pipeline.graph())

    found = compared(version(kept="1 second", gone="1 second"), version(kept="2 seconds", new="1 second"), None)
    assert found.operators == ()
    assert [text for text in found.warnings if text.startswith("Watermark")] == [
        "Watermark 'gone' is removed: timers that depended on it no longer fire by its time.",
        (
            "Watermark 'kept' changes: delay 1 second → 2 seconds. It continues from its current value and never "
            "decreases."
        ),
    ]
    assert compared(version(kept="1 second"), version(kept="1 second"), None).warnings == ()
