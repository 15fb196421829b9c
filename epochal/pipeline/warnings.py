"""What an author should know of a valid pipeline: what is probably not meant, and what costs more than it looks."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.pipeline.decomposition import decompose
from epochal.pipeline.graph import AggregateNode, Graph, NodeId, OperatorNode, inputs
from epochal.pipeline.names import listed


def warnings_of(graph: Graph) -> tuple[str, ...]:
    """One text for each: where, what, and what to do."""
    return tuple(
        text
        for node in graph.operators
        if isinstance(node, AggregateNode)
        for text in (*_over_changing_values(graph, node), *_costs(node))
    )


def _over_changing_values(graph: Graph, node: AggregateNode) -> Iterator[str]:
    names = sorted({other.name for other in _nearest(graph, node.input) if isinstance(other, AggregateNode)})
    if not names:
        return
    columns = listed(f"{aggregation.name}={aggregation.expression}" for aggregation in node.aggregations)
    yield (
        f"Operator {node.name!r} aggregates what {listed(map(repr, names))} gives: in every epoch new values of keys, "
        f"beside those of earlier epochs, which are not taken back. So {columns} depends on how the rows "
        f"fell into epochs. Aggregate the rows that {names[0]!r} reads, by the keys of {node.name!r}; or keep the "
        "latest value of each key in a MapState of process(), and compute from these."
    )


def _nearest(graph: Graph, id: NodeId) -> Iterator[OperatorNode]:
    """The operators that a node's rows come from, through transforms only."""
    node = graph.node(id)
    if isinstance(node, OperatorNode):
        yield node
        return
    for above in inputs(node):
        yield from _nearest(graph, above)


def _costs(node: AggregateNode) -> Iterator[str]:
    for aggregation in node.aggregations:
        where = f"Operator {node.name!r}, column {aggregation.name!r}"
        for aggregate in decompose(where, aggregation.expression).aggregates:
            if aggregate.cost is not None:
                yield f"{where}: {aggregation.expression} {aggregate.cost}"
