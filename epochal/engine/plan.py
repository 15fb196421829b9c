"""Which operators have to run in a job of their own, and which have to be drained. Pure, over the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    Graph,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    TransformNode,
)


@dataclass(frozen=True)
class JobShape:
    """``shared`` operators are read more than once per epoch: each is materialised first, so that it runs once.

    Its sides are read as its output is: one task gives them all. ``drained`` operators lead to no sink and to no other
    operator: the job reads them for their handles alone. ``unread``: the operators whose output, and the readers of
    sides whose rows, nobody needs. ``written``: by operator the sink that alone reads it, with nothing between.
    """

    shared: frozenset[NodeId]
    drained: tuple[NodeId, ...]
    unread: frozenset[NodeId]
    written: Mapping[NodeId, SinkNode]


def job_shape(graph: Graph, sinks: bool) -> JobShape:
    """``sinks`` False: a shadow execution, whose sinks are left out."""
    uses = _uses(graph, sinks)
    runs = {
        node.id: uses[node.id] + sum(uses[side.id] for side in graph.sides(node.id) if not side.by_engine)
        for node in graph.operators
    }
    return JobShape(
        shared=frozenset(id for id, times in runs.items() if times > 1),
        drained=tuple(id for id, times in runs.items() if times == 0),
        unread=frozenset(
            node.id for node in graph.nodes if isinstance(node, (OperatorNode, SideNode)) and uses[node.id] == 0
        ),
        written={node.input: node for node in graph.sinks if sinks and runs.get(node.input) == 1},
    )


def _uses(graph: Graph, sinks: bool) -> dict[NodeId, int]:
    """How often each node's rows are computed in one job, were nothing materialised: one for each path to a reader."""
    uses: dict[NodeId, int] = {}
    for node in reversed(graph.nodes):
        total = 0
        for consumer in graph.consumers(node.id):
            match graph.node(consumer):
                case SinkNode():
                    total += 1 if sinks else 0
                case CloseNode():
                    total += 1
                case TransformNode():
                    total += uses[consumer]
                case EventTimeNode():
                    total += uses[consumer] + _kept_out(graph, consumer, uses)
                case OperatorNode():
                    # A shared operator is materialised, a drained one is read once: either way it reads its input once.
                    total += 1 + _kept_out(graph, consumer, uses)
                case SideNode():
                    pass  # of the operator's task, or of what it reads: not of its output
        uses[node.id] = total
    return uses


def _kept_out(graph: Graph, id: NodeId, uses: dict[NodeId, int]) -> int:
    """How often what is kept out of a node's input is read: each time the input is computed for it."""
    return sum(uses[side.id] for side in graph.sides(id) if side.by_engine)
