"""A graph as plain data for people and for the catalog, without secrets. No Spark is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from epochal.contracts.stream_kind import StreamKind
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    FeedbackNode,
    Graph,
    Node,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
)
from epochal.pipeline.kinds import Kinds, kinds_of
from epochal.state.table import Column, StateTable

HEAD: Final = "feedback"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeDescription(_Value):
    """``type`` is ``source``, ``static``, ``transform``, ``watermark``, ``sink``, an operator's kind, such as
    ``aggregate``, or, of the two ends of a loop, which have one name, ``feedback`` and ``close``. ``columns`` (name ->
    Spark type) are known after an analysis only, and not of rows that are a program's own. ``stream``: the kind of
    stream that it gives; ``null`` for tables and sinks, and in versions from before there were kinds."""

    id: int
    name: str
    type: str
    inputs: tuple[int, ...] = ()
    description: dict[str, Any] = {}
    columns: dict[str, str] | None = None
    stream: StreamKind | None = None


class GraphDescription(_Value):
    """``sinks``: name -> target, as ``SinkBackend.target``. ``tables`` is ``None`` before an analysis.

    ``warnings``: what is valid and probably not meant, or costs more than it looks, with what to do. ``notes``: which
    operators' states grow with the keys that come.
    """

    name: str
    nodes: tuple[NodeDescription, ...]
    sinks: dict[str, str]
    tables: tuple[StateTable, ...] | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def loops(self) -> dict[str, tuple[Column, ...]]:
        """The columns of each loop."""
        return {node.name: _columns(node.description) for node in self.nodes if node.type == HEAD}


def describe(graph: Graph) -> GraphDescription:
    """What can be said of a graph without Spark: names, kinds, edges, and where the sinks write."""
    kinds = kinds_of(graph)
    return GraphDescription(
        name=graph.name,
        nodes=tuple(_described(node, kinds) for node in graph.nodes),
        sinks={node.name: node.backend().target for node in graph.sinks},
        warnings=warnings_of(graph),
        notes=notes_of(graph),
    )


def _columns(feedback: dict[str, Any]) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type) for name, type in feedback["columns"].items())


def _described(node: Node, kinds: Kinds) -> NodeDescription:
    return NodeDescription(
        id=node.id,
        name=_name(node),
        type=_type(node),
        inputs=inputs(node),
        description=_details(node),
        stream=kinds.get(node.id),
    )


def _name(node: Node) -> str:
    match node:
        case TransformNode():
            return node.label
        case SideNode():
            return node.side
        case _:
            return node.name


def _type(node: Node) -> str:
    match node:
        case SourceNode():
            return "source"
        case StaticNode():
            return "static"
        case TransformNode():
            return "transform"
        case EventTimeNode():
            return "watermark"
        case OperatorNode():
            return node.operator.kind
        case SideNode():
            return "side"
        case FeedbackNode():
            return HEAD
        case CloseNode():
            return "close"
        case SinkNode():
            return "sink"


def _details(node: Node) -> dict[str, Any]:
    match node:
        case SourceNode() | StaticNode() | SinkNode():
            return dict(node.description)
        case FeedbackNode():
            return node.feedback.details()
        case TransformNode():
            return dict(node.function.details()) if hasattr(node.function, "details") else {}
        case SideNode() | CloseNode():
            return {}
        case EventTimeNode():
            return node.event_time.details()
        case OperatorNode():
            return node.operator.details()


def notes_of(graph: Graph) -> tuple[str, ...]:
    """Of each operator whose state grows with the keys that come, one text: what grows, and what would bound it."""
    grows = ((node, node.operator.grows) for node in graph.operators)
    return tuple(f"Operator {node.name!r} {text}" for node, text in grows if text is not None)


def warnings_of(graph: Graph) -> tuple[str, ...]:
    """One text for each: where, what, and what to do."""
    # A control plane reads descriptions, and has no graphs: it loads no operators for them.
    from epochal.pipeline.loops import unread_dead_letters

    of_operators = (text for node in graph.operators for text in (*node.operator.warnings(), *_unread(graph, node)))
    return (*of_operators, *(_left_out(name) for name in unread_dead_letters(graph)))


def _left_out(loop: str) -> str:
    return (
        f"Loop {loop!r}: nobody reads its dead letters, so that what has gone round more often than max_hops is left "
        "out. Write dead_letters() somewhere, or leave max_hops out."
    )


def _unread(graph: Graph, node: OperatorNode) -> Iterator[str]:
    read = {reader.side for reader in graph.sides(node.id)}
    for side in node.operator.sides:
        if side not in read:
            yield (
                f"Operator {node.name!r}: nobody reads its side output {side!r}, whose rows are left out. Read it, "
                f"side({side!r}), or remove it from the class."
            )
