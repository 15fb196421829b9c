"""Descriptions of graphs as plain data, without secrets, for users and the catalog. They need no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from epochal.contracts.configuration import Configuration
from epochal.contracts.stream_kind import StreamKind
from epochal.pipeline.code_lines import CodeLine
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
from epochal.pipeline.parallelism import Scaled
from epochal.state.table import Column, StateTable

HEAD: Final = "feedback"
NO_OPERATORS: Final = ("source", "static", "transform", "watermark", "side", HEAD, "close", "sink")
"""Types of nodes besides operators, whose type is their kind: aggregate, process, .."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeDescription(_Value):
    """``type``: ``source``, ``static``, ``transform``, ``watermark``, ``side``, ``sink``, the kind of an operator, such
    as ``aggregate``, or ``feedback`` and ``close`` for the two ends of a loop, which have one name. ``columns`` (name
    -> Spark type): only after analysis, and not for internal rows of programs. ``stream``: the kind of the output
    stream; ``null`` for tables and sinks."""

    id: int
    name: str
    type: str
    inputs: tuple[int, ...] = ()
    description: dict[str, Any] = {}
    columns: dict[str, str] | None = None
    stream: StreamKind | None = None


class GraphDescription(_Value):
    """``sinks``: name -> target, as ``SinkBackend.target``. ``tables``: ``None`` before analysis.

    ``warnings``: valid declarations that are probably mistakes or unexpectedly expensive, with the fix. ``notes``: the
    operators whose state grows with the number of keys, and the cost of sources. ``lines``: by node, the line of the
    artifact that defines it; empty for artifacts that were analysed by version 0.1.0.
    """

    name: str
    nodes: tuple[NodeDescription, ...]
    sinks: dict[str, str]
    tables: tuple[StateTable, ...] | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lines: tuple[CodeLine | None, ...] = ()

    @property
    def scaled(self) -> tuple[Scaled, ...]:
        """The operators with their declared numbers of subtasks."""
        operators = (node for node in self.nodes if node.type not in NO_OPERATORS)
        return tuple(
            Scaled(node.name, node.description.get("scaled_as", node.name), node.description.get("parallelism"))
            for node in operators
        )

    def subtasks(self, configuration: Configuration) -> dict[str, int]:
        """The number of subtasks of each operator, also of one that only its state table names."""
        of_tables = {table.operator: configuration.parallelism_of(table.operator) for table in self.tables or ()}
        return of_tables | {each.operator: each.subtasks(configuration) for each in self.scaled}

    @property
    def loops(self) -> dict[str, tuple[Column, ...]]:
        """The columns of each loop."""
        return {node.name: _columns(node.description) for node in self.nodes if node.type == HEAD}


def describe(graph: Graph) -> GraphDescription:
    """Describe a graph without Spark: names, kinds, edges, and the targets of sinks."""
    kinds = kinds_of(graph)
    return GraphDescription(
        name=graph.name,
        nodes=tuple(_described(node, kinds) for node in graph.nodes),
        sinks={node.name: node.backend().target for node in graph.sinks},
        warnings=warnings_of(graph),
        notes=notes_of(graph),
        lines=graph.lines,
    )


def described_nodes(graph: Graph) -> tuple[NodeDescription, ...]:
    """Nodes of a graph that may be incomplete, without kinds of streams."""
    return tuple(_described(node, {}) for node in graph.nodes)


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
            declared = {} if node.parallelism is None else {"parallelism": node.parallelism}
            scaled_as = node.operator.scaled_as
            return {
                **node.operator.details(),
                **declared,
                **({} if scaled_as == node.name else {"scaled_as": scaled_as}),
            }


def notes_of(graph: Graph) -> tuple[str, ...]:
    """One text for each operator whose state grows with the number of keys, and each source and sink with a note."""
    sources = (node for node in graph.nodes if isinstance(node, SourceNode) and node.note is not None)
    grows = ((node, node.operator.grows) for node in graph.operators)
    return (
        *(f"Operator {node.name!r} {text}" for node, text in grows if text is not None),
        *(f"Source {node.name!r} {node.note}" for node in sources),
        *(f"Sink {node.name!r} {node.note}" for node in graph.sinks if node.note is not None),
    )


def warnings_of(graph: Graph) -> tuple[str, ...]:
    """Warnings with place, problem and fix."""
    # A control plane reads descriptions but has no graphs, and must not load operators.
    from epochal.pipeline.loops import unread_dead_letters

    of_operators = (text for node in graph.operators for text in (*node.operator.warnings(), *_unread(graph, node)))
    return (*of_operators, *(_left_out(name) for name in unread_dead_letters(graph)))


def _left_out(loop: str) -> str:
    return (
        f"Loop {loop!r}: its dead letters are not used, so that records that exceed max_hops are dropped. Write "
        "dead_letters() to a sink, or leave max_hops out."
    )


def _unread(graph: Graph, node: OperatorNode) -> Iterator[str]:
    read = {reader.side for reader in graph.sides(node.id)}
    for side in node.operator.sides:
        if side not in read:
            yield (
                f"Operator {node.name!r}: its side output {side!r} is not used, so that its rows are dropped. Use "
                f"side({side!r}), or remove it from the class."
            )
