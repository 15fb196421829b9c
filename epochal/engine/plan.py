"""Which operators have to run in a job of their own, and which have to be drained. Pure, over the graph."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.pipeline.graph import EventTimeNode, Graph, NodeId, OperatorNode, SinkNode, TransformNode


@dataclass(frozen=True)
class JobShape:
    """``shared`` operators are read more than once per epoch: each is materialised first, so that it runs once.

    ``drained`` operators lead to no sink and to no other operator: the job reads them for their handles alone.
    """

    shared: frozenset[NodeId]
    drained: tuple[NodeId, ...]


def job_shape(graph: Graph, sinks: bool) -> JobShape:
    """``sinks`` False: a shadow execution, whose sinks are left out."""
    uses = _uses(graph, sinks)
    return JobShape(
        shared=frozenset(node.id for node in graph.operators if uses[node.id] > 1),
        drained=tuple(node.id for node in graph.operators if uses[node.id] == 0),
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
                case TransformNode() | EventTimeNode():
                    total += uses[consumer]
                case OperatorNode():
                    # A shared operator is materialised, a drained one is read once: either way it reads its input once.
                    total += 1
        uses[node.id] = total
    return uses
