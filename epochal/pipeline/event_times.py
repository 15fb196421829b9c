"""Which streams of a graph have an event time, and where their watermarks come from. No Spark is needed.

The column travels by name. Whether a transform has kept it is for analysis to say, which knows the transform's columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epochal.pipeline.graph import EventTimeNode, Graph, Node, NodeId, OperatorNode, StaticNode, TransformNode
from epochal.state.watermarks import Declaration, TimedOperator, TimeGraph


@dataclass(frozen=True)
class Timed:
    """A stream with event time: the name of its column, and the places whose watermarks are its own."""

    column: str
    places: tuple[str, ...]


def timed_streams(nodes: Sequence[Node]) -> dict[NodeId, Timed]:
    """The nodes whose rows have an event time."""
    found: dict[NodeId, Timed] = {}
    tables: set[NodeId] = set()
    for node in nodes:
        match node:
            case StaticNode():
                tables.add(node.id)
            case EventTimeNode():
                found[node.id] = Timed(node.event_time.column, (node.name,))
            case TransformNode():
                streams = [id for id in node.inputs if id not in tables]
                if not streams:
                    tables.add(node.id)
                elif timed := _united(found.get(id) for id in streams):
                    found[node.id] = timed
            case OperatorNode():
                column = node.operator.event_time_of_output
                if column is not None and places_of(node, found):
                    found[node.id] = Timed(column, (node.name,))
            case _:
                pass
    return found


def places_of(node: OperatorNode, timed: dict[NodeId, Timed]) -> tuple[str, ...]:
    """The places that an operator's watermarks come from, of all inputs whose event time it goes by; none if none."""
    inputs = zip(node.operator.inputs, node.inputs, strict=True)
    places = [place for input, id in inputs if input.event_time and id in timed for place in timed[id].places]
    return tuple(dict.fromkeys(places))


def time_graph(graph: Graph) -> TimeGraph:
    """The places of a graph that have watermarks."""
    timed = timed_streams(graph.nodes)
    places: list[Declaration | TimedOperator] = []
    for node in graph.nodes:
        if isinstance(node, EventTimeNode):
            places.append(Declaration(node.name, node.event_time.delay, node.event_time.idle_after))
        if isinstance(node, OperatorNode) and (inputs := places_of(node, timed)):
            places.append(TimedOperator(node.name, inputs, node.operator.hold))
    return TimeGraph(tuple(places))


def _united(streams: Iterable[Timed | None]) -> Timed | None:
    """All of one column, or none."""
    found = list(streams)
    columns = {one.column.casefold() for one in found if one is not None}
    if None in found or len(columns) != 1:
        return None
    timed = [one for one in found if one is not None]
    return Timed(timed[0].column, tuple(dict.fromkeys(place for one in timed for place in one.places)))
