"""The verbs of event time: what streams ask of the graph, and add to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.declarations.event_time import EventTime
from epochal.declarations.names import check_name, name_of_class
from epochal.declarations.sides import LATE, LATE_OF_INPUT, REJECTED
from epochal.errors import PipelineError
from epochal.pipeline.event_times import timed_streams
from epochal.pipeline.graph import EventTimeNode, NodeId, OperatorNode, SideNode

if TYPE_CHECKING:
    from epochal.pipeline.pipeline import Builder


def column_of(builder: Builder, node: NodeId) -> str | None:
    """The column that says when a row of ``node`` happened."""
    timed = timed_streams(builder.nodes).get(node)
    return None if timed is None else timed.column


def declare(builder: Builder, node: NodeId, event_time: EventTime, name: str | None) -> NodeId:
    """``with_watermark`` over ``node``. Raises ``PipelineError``."""
    column = event_time.column
    if isinstance(builder.nodes[node], EventTimeNode):
        raise PipelineError(
            f"with_watermark({column!r}): the stream was just given a watermark. Declare it once: remove one."
        )
    chosen = check_name("a watermark (name=..)", name or name_of_class(column))
    builder.claim("watermark", chosen)
    return builder.add(lambda id: EventTimeNode(id, chosen, node, event_time))


def rejected(builder: Builder, node: NodeId) -> NodeId:
    """The rows that a declaration keeps from its readers. Raises ``PipelineError`` where none was made."""
    if not isinstance(builder.nodes[node], EventTimeNode):
        raise PipelineError("Only the stream that with_watermark() gives has rejected rows: ask it for them.")
    return builder.add(lambda id: SideNode(id, node, REJECTED))


def late(builder: Builder, node: NodeId) -> NodeId:
    """The late rows of an operator. Raises ``PipelineError`` where there are none."""
    operator = builder.nodes[node]
    if not isinstance(operator, OperatorNode) or not any(
        operator.operator.may_be_late(number) for number in range(len(operator.inputs))
    ):
        raise PipelineError(
            "No row is late to this stream: only windows, joins and timers over event time leave late rows out. "
            "Ask the stream that they give, before any other verb."
        )
    return builder.add(lambda id: SideNode(id, node, LATE))


def late_of(builder: Builder, node: NodeId, input: int) -> NodeId:
    """The late rows of one of the two streams that a join reads. Raises ``PipelineError`` where there are none."""
    joined = builder.nodes[node]
    if not isinstance(joined, OperatorNode) or len(joined.inputs) != len(LATE_OF_INPUT):
        raise PipelineError(
            f"{LATE_OF_INPUT[input]}: only a join of two streams has it. Ask the stream that the join gives, before "
            "any other verb; of any other operator over event time take late."
        )
    if not joined.operator.may_be_late(input):
        raise PipelineError(
            f"{LATE_OF_INPUT[input]}: no row of that stream is late to operator {joined.operator.name!r}."
        )
    return builder.add(lambda id: SideNode(id, node, LATE_OF_INPUT[input]))
