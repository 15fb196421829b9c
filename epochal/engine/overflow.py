"""Which operator a number left its type in, when Spark's error does not say. Only a failed epoch pays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import DataFrame

from epochal.errors import EpochalError
from epochal.operators.contract import OperatorPlan
from epochal.pipeline.graph import Graph, NodeId, OperatorNode


def located(graph: Graph, frames: Mapping[NodeId, DataFrame], plans: Mapping[str, OperatorPlan]) -> EpochalError | None:
    """The error that names operator and column; ``None`` where none of the operators finds the number.

    ``frames``: of the graph's nodes over the epoch's slices, as far as they were made. Operators that read another
    operator's output are left out, as its task would have to run again.
    """
    for node, inputs in _over_sources(graph, frames):
        found = plans[node.name].located(inputs)
        if found is not None:
            return found
    return None


def _over_sources(
    graph: Graph, frames: Mapping[NodeId, DataFrame]
) -> Iterator[tuple[OperatorNode, Sequence[DataFrame]]]:
    """The operators, with their inputs, that read no other operator's output: so no task has to run again."""
    operators = {node.id for node in graph.operators}
    for node in graph.operators:
        if frames.keys() >= set(node.inputs) and not operators & graph.ancestors(node.inputs):
            yield node, [frames[id] for id in node.inputs]
