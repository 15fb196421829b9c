"""Two versions compared by name: operators of every kind."""

from __future__ import annotations

import pytest

from epochal.pipeline.description import describe
from epochal.service.preflight.comparison import compared
from tests.operators.every_operator import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_of_any_kind_is_seen_to_come(case: Case) -> None:
    pipeline = case.pipeline()
    graph = describe(pipeline.graph())
    without = graph.model_copy(update={"nodes": tuple(node for node in graph.nodes if node.type != case.name)})
    (part,) = compared(without, graph, None).operators
    assert (part.verdict, part.before, part.after) == ("added", None, case.name)
    (part,) = compared(graph, graph, None).operators
    assert part.verdict == "same"
