"""The columns of sources that nothing of a pipeline reads, as far as that can be known without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from epochal.declarations.references import is_found
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    FeedbackNode,
    Graph,
    Node,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
)
from epochal.pipeline.verb_columns import NO_COLUMNS, Columns, folded, together


def unread(graph: Graph, columns: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """By source, of its ``columns`` those that nothing reads. One of them is left at least, so that rows are rows."""
    needed = _needed(graph)
    found = {}
    for node in graph.sources:
        names, read = list(columns[node.name]), needed[node.id]
        if read is not None:
            left = [name for name in names if name.casefold() not in read and is_found(name)]
            found[node.name] = frozenset(left[1:] if len(left) == len(names) else left)
    return found


def _needed(graph: Graph) -> dict[NodeId, Columns]:
    """Of each node's rows the columns that its readers need."""
    needed: dict[NodeId, Columns] = {node.id: NO_COLUMNS for node in graph.nodes}
    for node in reversed(graph.nodes):
        if node.id in graph.needed:
            for id, columns in _reads(graph, node, needed[node.id]):
                needed[id] = together(needed[id], columns)
    return needed


def _reads(graph: Graph, node: Node, needed: Columns) -> Iterator[tuple[NodeId, Columns]]:
    """What a node reads of which, when ``needed`` are the columns that are needed of its own rows."""
    match node:
        case SourceNode() | StaticNode() | FeedbackNode():
            pass
        case TransformNode():
            columns = None if node.columns_of is None else node.columns_of(needed)
            for id in node.inputs:
                yield id, columns
        case EventTimeNode():
            yield node.input, together(needed, folded([node.event_time.column]))
        case OperatorNode():
            for number, (id, input) in enumerate(zip(node.inputs, node.operator.inputs, strict=True)):
                time = () if input.event_time is None else (input.event_time,)
                yield id, together(node.operator.computes_of(number), folded([*input.keys, *input.order_by, *time]))
        case SideNode():
            if node.by_engine:  # rows of what that node reads, as they are
                for id in inputs(graph.node(node.input)):
                    yield id, None
        case SinkNode() | CloseNode():
            yield node.input, None
