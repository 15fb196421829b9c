"""The kind of every stream of a graph, and who reads what it does not take. No Spark is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epochal.contracts.stream_kind import APPEND, Accepted, Kind, StreamKind, only_append
from epochal.errors import PipelineError
from epochal.pipeline.evaluate import place
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    FeedbackNode,
    Graph,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
)
from epochal.pipeline.verb_kinds import kept_out, with_rejects

_MEANINGS = {
    Kind.APPEND: "rows that stay",
    Kind.UPSERT: "new values of keys, which take the place of earlier ones",
    Kind.UPDATES: "rows that changed",
    Kind.CHANGES: "rows as they were and as they are",
}

_RECORDS = only_append(
    "Give the rows that are to go round again as rows: with process() or process_batch() behind it, whose rows stay."
)

Kinds = Mapping[NodeId, StreamKind]


def kinds_of(graph: Graph) -> Kinds:
    """The kinds of all streams; tables and what is computed from them alone have none, nor have sinks."""
    kinds: dict[NodeId, StreamKind] = {}
    for node in graph.nodes:
        match node:
            case SourceNode() | FeedbackNode():
                kinds[node.id] = APPEND
            case TransformNode():
                streams = [kinds[id] for id in node.inputs if id in kinds]
                if streams:
                    kinds[node.id] = node.kind_of(streams)
            case EventTimeNode():
                kinds[node.id] = with_rejects(kinds[node.input])
            case OperatorNode():
                kinds[node.id] = node.operator.gives([kinds[id] for id in node.inputs])
            case SideNode():
                kinds[node.id] = (
                    kept_out([kinds[id] for id in inputs(graph.node(node.input))]) if node.by_engine else APPEND
                )
            case StaticNode() | CloseNode() | SinkNode():
                pass
    return kinds


def misfits(graph: Graph) -> tuple[str, ...]:
    """For each reader of a stream of a kind that it does not take: both ends, and the fix."""
    kinds = kinds_of(graph)
    return tuple(
        _message(graph, kinds, reader, accepted, id)
        for reader, accepted, id in _readers(graph)
        if not accepted.takes(kinds[id])
    )


def check_kinds(graph: Graph) -> None:
    """Raises ``PipelineError`` with the first of :func:`misfits`."""
    for message in misfits(graph):
        raise PipelineError(message)


def _readers(graph: Graph) -> Iterator[tuple[str, Accepted, NodeId]]:
    for node in graph.nodes:
        if isinstance(node, OperatorNode):
            for input, id in zip(node.operator.inputs, node.inputs, strict=True):
                yield f"Operator {node.name!r}", input.takes, id
        if isinstance(node, CloseNode):
            yield f"Loop {node.name!r}", _RECORDS, node.input
        if isinstance(node, SinkNode):
            yield f"Sink {node.name!r}", node.takes, node.input


def _message(graph: Graph, kinds: Kinds, reader: str, accepted: Accepted, id: NodeId) -> str:
    stream = kinds[id]
    meaning = _MEANINGS[stream.kind] + (f"; {stream.reason}" if stream.reason else "")
    origin = place(graph, _origin(graph, kinds, id))
    return f"{reader} takes {accepted}; {origin} gives {stream}: {meaning}. {accepted.fix(stream)}"


def _origin(graph: Graph, kinds: Kinds, id: NodeId) -> NodeId:
    """The node that made a stream what it is: transforms that only hand the kind on are not it."""
    node = graph.node(id)
    while isinstance(node, TransformNode):
        above = next((other for other in node.inputs if kinds.get(other) == kinds[id]), None)
        if above is None:
            break
        node = graph.node(above)
    return node.id
