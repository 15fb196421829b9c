"""Event time in a graph: the streams that have it, the origin of their watermarks, partitions, and checks.

The event time column is identified by its name. Analysis, which has the columns of transforms, checks that it is
unchanged.
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
    """A stream with event time: the name of its column, and the places that define its watermark."""

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
    """The places that define the watermark of an operator, for all inputs whose event time it uses."""
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
    """The event time of united streams, if all have the same column."""
    found = list(streams)
    columns = {one.column.casefold() for one in found if one is not None}
    if None in found or len(columns) != 1:
        return None
    timed = [one for one in found if one is not None]
    return Timed(timed[0].column, tuple(dict.fromkeys(place for one in timed for place in one.places)))


@dataclass(frozen=True)
class Partitions:
    """The partitions of declarations of event time.

    Partitions are only known for a declaration over one source with row-wise verbs between: after a union, an author's
    function or an operator the partition of a row is unknown, and a verb that computes over all columns must not get an
    additional one. Otherwise the declaration has one watermark for the whole stream, which is correct too, but rows of
    a partition that lags behind are late.

    ``sources``: by declaration, all sources of its rows. ``partitioned``: by declaration, the source of its partitions.
    ``carrying``: the nodes whose rows contain the partition."""

    sources: Mapping[str, frozenset[str]]
    partitioned: Mapping[str, str]
    carrying: frozenset[NodeId]


NO_PARTITIONS: Final = Partitions({}, {}, frozenset())


def partitions_in(graph: Graph, sources: Mapping[str, Source]) -> Partitions:
    """The known partitions. ``sources``: by name."""
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
    """The path from a node up through row-wise verbs, to the node that they begin with."""
    path = [id]
    node = graph.node(id)
    while isinstance(node, TransformNode) and _carries(node):
        node = graph.node(node.inputs[0])
        path.append(node.id)
    return path


def _carries(node: TransformNode) -> bool:
    """Return whether a verb can carry the partition. A verb over all columns (``struct(*)``) would include it."""
    return node.carrying is not None and not any(map(computes_of_all, node.expressions))


if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_event_time(node: EventTimeNode, frame: DataFrame) -> None:
    """Raises ``PipelineError`` for a column that is missing or is not a timestamp.

    A ``timestamp_ntz`` is not an instant, because its time zone is unknown.
    """
    name = node.event_time.column
    types = {field.name.casefold(): field.dataType.simpleString() for field in frame.schema}
    type = types.get(name.casefold())
    if type is None:
        raise PipelineError(f"there is no column {name!r}.{closest(name, frame.columns)}")
    if type == "timestamp_ntz":
        raise PipelineError(
            f"column {name!r} is a timestamp without time zone, which is not an instant. Convert it from its zone: "
            f"with_columns({name}=\"to_utc_timestamp(CAST({name} AS timestamp), 'Europe/Berlin')\")."
        )
    if type != "timestamp":
        raise PipelineError(
            f"column {name!r} is a {type}, not a timestamp. Convert it first: "
            f'with_columns({name}="to_timestamp({name})") for text, "timestamp_millis({name})" for milliseconds.'
        )


def check_inputs_of(graph: Graph, node: OperatorNode, frames: Mapping[NodeId, DataFrame]) -> None:
    """Raises ``PipelineError`` if a transform removed or recomputed the event time that an operator uses. ``frames``:
    of the previous nodes."""
    for input, id in zip(node.operator.inputs, node.inputs, strict=True):
        lost = None if input.event_time is None else _lost(graph, frames, id, input.event_time)
        if lost is not None:
            raise PipelineError(
                f"Operator {node.name!r} uses event time {input.event_time!r}, which {place(graph, lost)} removes "
                "or recomputes, so that the watermark is no longer valid. Call with_watermark(..) again after it, or "
                "keep the column unchanged."
            )


def check_declared_once(graph: Graph, frames: Mapping[NodeId, DataFrame]) -> None:
    """Raises ``PipelineError`` if a valid event time is declared again."""
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
                f"with_watermark({column!r}) is called twice for one stream without a change of the column between. "
                "Remove one of the calls."
            )


def _lost(graph: Graph, frames: Mapping[NodeId, DataFrame], id: NodeId, column: str) -> NodeId | None:
    """The first transform between the declaration of event time and a node that removed or changed the column."""
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
    """Return whether the column is unchanged. Spark resolves it by its id, not by its name."""
    from pyspark.errors import AnalysisException

    if column.casefold() not in {name.casefold() for name in before.columns}:
        return True  # it was lost before
    try:
        after.select(before[column])
    except AnalysisException:
        return False
    return True
