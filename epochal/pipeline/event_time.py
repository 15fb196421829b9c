"""Which streams of a graph have an event time, and where their watermarks come from. No Spark is needed.

The column travels by name. Whether a transform has kept it is for analysis to say, which knows the transform's columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epochal.contracts.source import Source
from epochal.declarations.names import closest
from epochal.declarations.references import computes_of_all
from epochal.errors import PipelineError
from epochal.pipeline.graph import (
    EventTimeNode,
    Graph,
    Node,
    NodeId,
    OperatorNode,
    SourceNode,
    StaticNode,
    TransformNode,
    place,
)
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


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_event_time(node: EventTimeNode, frame: DataFrame) -> None:
    """Raises ``PipelineError`` for a column that is not there or is no timestamp.

    A ``timestamp_ntz`` names no instant: which one is meant depends on a zone that nobody has said.
    """
    name = node.event_time.column
    types = {field.name.casefold(): field.dataType.simpleString() for field in frame.schema}
    type = types.get(name.casefold())
    if type is None:
        raise PipelineError(f"there is no column {name!r}.{closest(name, frame.columns)}")
    if type == "timestamp_ntz":
        raise PipelineError(
            f"column {name!r} is a timestamp without time zone, which names no instant. Say in which zone it is: "
            f"with_columns({name}=\"to_utc_timestamp(CAST({name} AS timestamp), 'Europe/Berlin')\")."
        )
    if type != "timestamp":
        raise PipelineError(
            f"column {name!r} is a {type}, not a timestamp. Convert it before: "
            f'with_columns({name}="to_timestamp({name})") for text, "timestamp_millis({name})" for milliseconds.'
        )


def check_inputs_of(graph: Graph, node: OperatorNode, frames: Mapping[NodeId, DataFrame]) -> None:
    """Raises ``PipelineError`` where an operator goes by an event time that a transform before it has left out or
    computed anew. ``frames``: of the nodes before it."""
    for input, id in zip(node.operator.inputs, node.inputs, strict=True):
        lost = None if input.event_time is None else _lost(graph, frames, id, input.event_time)
        if lost is not None:
            raise PipelineError(
                f"Operator {node.name!r} goes by event time {input.event_time!r}, which {place(graph, lost)} leaves "
                "out or computes anew: how far its rows are out of order is not known any more. Call "
                "with_watermark(..) once more behind it, or keep the column as it is."
            )


def check_declared_once(graph: Graph, frames: Mapping[NodeId, DataFrame]) -> None:
    """Raises ``PipelineError`` where an event time that is still there is declared once more."""
    for declaration in graph.declarations:
        column = declaration.event_time.column
        origin = graph.node(declaration.input)
        while isinstance(origin, TransformNode) and len(origin.inputs) == 1:
            origin = graph.node(origin.inputs[0])
        if (
            isinstance(origin, EventTimeNode)
            and origin.event_time.column.casefold() == column.casefold()
            and _lost(graph, frames, declaration.input, column) is None
        ):
            raise PipelineError(
                f"with_watermark({column!r}) is called twice for one stream, and the column was not changed between: "
                "declare it once, remove one."
            )


def _lost(graph: Graph, frames: Mapping[NodeId, DataFrame], id: NodeId, column: str) -> NodeId | None:
    """The first transform, up from a node to where event time begins, behind which the column is not what it was."""
    node = graph.node(id)
    if not isinstance(node, TransformNode):
        return None
    timed = timed_streams(graph.nodes)
    streams = [above for above in node.inputs if above in timed]
    if column.casefold() not in {name.casefold() for name in frames[id].columns}:
        return id
    if len(streams) == 1 and not _keeps(frames[streams[0]], frames[id], column):
        return id
    return next((lost for above in streams if (lost := _lost(graph, frames, above, column)) is not None), None)


def _keeps(before: DataFrame, after: DataFrame, column: str) -> bool:
    """Whether the column is the very same: Spark finds it by the identity that it gave it, not by its name."""
    from pyspark.errors import AnalysisException

    if column.casefold() not in {name.casefold() for name in before.columns}:
        return True  # it was lost before
    try:
        after.select(before[column])
    except AnalysisException:
        return False
    return True
