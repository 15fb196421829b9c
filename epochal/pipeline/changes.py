"""How changes come to an aggregate over them: after an upgrade, too, rows are taken back as they were added."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.pipeline.graph import Node, NodeId, OperatorNode, TransformNode


def way_to(nodes: Sequence[Node], id: NodeId) -> tuple[str, ...]:
    """What is computed from the operators that give changes to a node, in words that are the same for the same code."""
    node = nodes[id]
    match node:
        case OperatorNode():
            details = node.operator.details()
            columns = (f"{name} = {expression}" for name, expression in details.get("columns", {}).items())
            return (f"{node.name} by {', '.join(details.get('keys', ()))}: {', '.join(columns)}",)
        case TransformNode():
            computed = ", ".join(map(str, node.expressions))
            said = f"{node.label}: {computed}" if computed and computed not in node.label else node.label
            return (*(words for input in node.inputs for words in way_to(nodes, input)), said)
        case _:
            return ()
