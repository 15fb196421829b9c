"""What an author should know of a valid pipeline: what is probably not meant, and what costs more than it looks."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.operators.contract import Operator
from epochal.pipeline.graph import Graph, NodeId, OperatorNode, inputs


def warnings_of(graph: Graph) -> tuple[str, ...]:
    """One text for each: where, what, and what to do."""
    return tuple(
        text
        for node in graph.operators
        for text in node.operator.warnings([above for id in node.inputs for above in _nearest(graph, id)])
    )


def _nearest(graph: Graph, id: NodeId) -> Iterator[Operator]:
    """The operators that a node's rows come from, through transforms only."""
    node = graph.node(id)
    if isinstance(node, OperatorNode):
        yield node.operator
        return
    for above in inputs(node):
        yield from _nearest(graph, above)
