"""How the partition of a row is known where its event time is declared: the source names it, row-wise verbs carry it.

Only declarations over one source, with row-wise verbs between, know partitions: a union, a function of the author's or
an operator gives rows of which nobody can say where they came from, and a verb that computes of all columns must not
see one more. Watermarks of one whole stream are right there too; but while a part of it catches up, the rest is late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from epochal.contracts.source import Source
from epochal.declarations.references import computes_of_all
from epochal.pipeline.graph import Graph, NodeId, SourceNode, TransformNode


@dataclass(frozen=True)
class Partitions:
    """``sources``: by declaration all sources that its rows come from. ``partitioned``: the one whose partitions they
    are known to be of. ``carrying``: the nodes whose rows say so, for readers that want to know."""

    sources: Mapping[str, frozenset[str]]
    partitioned: Mapping[str, str]
    carrying: frozenset[NodeId]


NO_PARTITIONS: Final = Partitions({}, {}, frozenset())


def partitions_in(graph: Graph, sources: Mapping[str, Source]) -> Partitions:
    """Where partitions are known; ``sources`` by name."""
    partitioned: dict[str, str] = {}
    carrying: set[NodeId] = set()
    for declaration in graph.declarations:
        path = _path(graph, declaration.input)
        origin = graph.node(path[-1])
        if isinstance(origin, SourceNode) and sources[origin.name].partitioned:
            partitioned[declaration.name] = origin.name
            carrying.update(path)
    above: dict[str, frozenset[str]] = {}
    for declaration in graph.declarations:
        ancestors = graph.ancestors([declaration.id])
        above[declaration.name] = frozenset(source.name for source in graph.sources if source.id in ancestors)
    return Partitions(above, partitioned, frozenset(carrying))


def _path(graph: Graph, id: NodeId) -> list[NodeId]:
    """Up from a node as far as row-wise verbs go, and the node that they begin with."""
    path = [id]
    node = graph.node(id)
    while isinstance(node, TransformNode) and _carries(node):
        node = graph.node(node.inputs[0])
        path.append(node.id)
    return path


def _carries(node: TransformNode) -> bool:
    """What a verb computes of all columns (``struct(*)``) would hold the partition, too."""
    return node.carrying is not None and not any(map(computes_of_all, node.expressions))
