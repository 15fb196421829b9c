"""The drawing of a graph in notebooks, from its declarations: without Spark, sources and sinks."""

from __future__ import annotations

from typing import Literal

from epochal.drawing.graph import Node, graph_svg
from epochal.drawing.texts import value
from epochal.pipeline.description import HEAD, NO_OPERATORS, NodeDescription, described_nodes
from epochal.pipeline.graph import Graph


def drawing_of(graph: Graph) -> str:
    """The SVG drawing of a graph, which may be incomplete."""
    nodes = described_nodes(graph)
    position = {node.id: index for index, node in enumerate(nodes)}
    shown = [
        Node(
            name=node.name,
            shape=_shape(node),
            kind=_kind(node),
            inputs=tuple(position[id] for id in node.inputs if id in position),
            facts=tuple(_facts(node)),
            hint=", ".join(f"{name} {value(of)}" for name, of in node.description.items() if name != "kind"),
        )
        for node in nodes
    ]
    return graph_svg(f"Pipeline {graph.name}", shown)


def _shape(node: NodeDescription) -> Literal["source", "operator", "sink", "plain"]:
    if node.type in ("source", "static"):
        return "source"
    if node.type == "sink":
        return "sink"
    return "plain" if node.type in NO_OPERATORS else "operator"


def _kind(node: NodeDescription) -> str:
    kind = "table" if node.type == "static" else "loop" if node.type == HEAD else node.type.replace("_", " ")
    return f"{kind} {node.description.get('kind', '')}".rstrip() if node.type in ("source", "static", "sink") else kind


def _facts(node: NodeDescription) -> list[str]:
    keys = node.description.get("keys")
    number = node.description.get("parallelism")
    facts = [f"by {', '.join(map(str, keys))}"] if isinstance(keys, list | tuple) and keys else []
    return [*facts, *([f"{number} subtasks"] if number is not None and node.type not in NO_OPERATORS else [])]
