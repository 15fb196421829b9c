"""A pipeline's graph as trees below its sources; what has several inputs stands below the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text
from rich.tree import Tree

from epochal.pipeline.graph import (
    AggregateNode,
    Graph,
    Node,
    NodeId,
    ProcessBatchNode,
    ProcessNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
)
from epochal.state.table import Column, StateTable

Columns = Mapping[str, str]
"""Name -> Spark type."""


def graph_tree(graph: Graph, columns: Mapping[NodeId, Columns], tables: Sequence[StateTable]) -> Tree:
    """``columns``: of each node's output, where they are known."""
    root = Tree(Text(graph.name, style="bold"), guide_style="dim")

    def draw(node: Node, below: Tree, reader_of: NodeId | None = None) -> None:
        if reader_of is not None and inputs(node)[0] != reader_of:
            below.add(Text(f"→ {name_of(node)}", style="dim"))
            return
        branch = below.add(_label(node, columns.get(node.id), graph))
        for table in tables:
            if not isinstance(node, TransformNode | SinkNode) and table.operator == name_of(node):
                branch.add(_state(table))
        for consumer in dict.fromkeys(graph.consumers(node.id)):
            draw(graph.node(consumer), branch, node.id)

    for node in graph.nodes:
        if not inputs(node):
            draw(node, root)
    return root


def name_of(node: Node) -> str:
    return node.label if isinstance(node, TransformNode) else node.name


def kind_of(node: Node) -> str:
    match node:
        case SourceNode():
            return "source"
        case StaticNode():
            return "table"
        case TransformNode():
            return "transform"
        case AggregateNode():
            return "aggregate"
        case ProcessNode():
            return "process"
        case ProcessBatchNode():
            return "process_batch"
        case SinkNode():
            return "sink"


def _label(node: Node, columns: Columns | None, graph: Graph) -> Text:
    text = Text()
    match node:
        case SourceNode() | StaticNode() | SinkNode():
            style = "bold magenta" if isinstance(node, SinkNode) else "bold green"
            details = ", ".join(f"{name}={value}" for name, value in node.description.items() if name != "kind")
            text.append(node.name, style)
            text.append("  " + " ".join(filter(None, [node.description.get("kind"), kind_of(node)])))
            text.append(f"  {details}" if details else "", "dim")
        case AggregateNode() | ProcessNode() | ProcessBatchNode():
            text.append(node.name, "bold cyan")
            text.append(f"  {kind_of(node)} by {', '.join(node.keys)}")
        case TransformNode():
            text.append(node.label)
            others = [name_of(graph.node(other)) for other in node.inputs[1:]]
            text.append(f"  with {', '.join(others)}" if others else "", "dim")
    if columns is not None and not isinstance(node, TransformNode):
        text.append("  " + ", ".join(f"{name} {type}" for name, type in columns.items()), "dim")
    return text


def _state(table: StateTable) -> Text:
    def listed(of: Sequence[Column]) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in of)

    queryable = "" if table.queryable else " (not queryable)"
    return Text.assemble(
        ("state ", "yellow"),
        (table.id, "bold yellow"),
        f"  {table.kind.value}{queryable}: ",
        (f"{listed(table.full_key)} → {listed(table.value)}", "dim"),
    )
