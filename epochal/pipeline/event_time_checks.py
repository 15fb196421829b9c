"""What analysis asks of event time: that the columns are there, are timestamps, and were not computed anew since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from epochal.declarations.names import closest
from epochal.errors import PipelineError
from epochal.pipeline.evaluate import place
from epochal.pipeline.event_times import timed_streams
from epochal.pipeline.graph import EventTimeNode, Graph, NodeId, OperatorNode, TransformNode

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
