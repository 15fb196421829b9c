"""The verbs of event time: declaring it, and the streams of rejected and late rows."""

from __future__ import annotations

from typing import Self

from epochal.declarations.event_time import OnReject, event_time
from epochal.declarations.names import check_name, name_of_class
from epochal.declarations.sides import LATE, LATE_OF_INPUT, REJECTED
from epochal.errors import PipelineError
from epochal.pipeline.event_time import timed_streams
from epochal.pipeline.graph import EventTimeNode, OperatorNode, SideNode
from epochal.pipeline.relation import Relation


class TimedRelation(Relation):
    """A relation whose rows can have an event time."""

    @property
    def event_time(self) -> str | None:
        """The name of the event time column; ``None`` if the stream has no event time (see :meth:`with_watermark`)."""
        timed = timed_streams(self._builder.nodes).get(self._node)
        return None if timed is None else timed.column

    def with_watermark(
        self,
        column: str,
        delay: str,
        *,
        idle_after: str | None = None,
        max_ahead: str | None = None,
        on_reject: OnReject = "count",
        name: str | None = None,
    ) -> Self:
        """Declare the timestamp ``column`` as event time, and how far rows can be out of order::

            bids.with_watermark("at", "10 seconds", idle_after="1 minute", max_ahead="1 day")

        The watermark is ``delay`` behind the latest row. If the source has partitions, each partition has a watermark,
        and the lowest one counts. A partition without rows for ``idle_after`` is idle and does not hold the watermark
        back. Rows without an event time, or with an event time more than ``max_ahead`` later than the epoch time, are
        rejected: they are counted and left out, or fail the epoch with ``on_reject="fail"``. ``name`` identifies the
        declaration in snapshots; the default is the name of the column.
        """
        declared = event_time(column, delay, idle_after=idle_after, max_ahead=max_ahead, on_reject=on_reject)
        column = declared.column
        if isinstance(self._builder.nodes[self._node], EventTimeNode):
            raise PipelineError(
                f"with_watermark({column!r}): the stream already has a watermark from the verb before. Remove one of "
                "the two calls."
            )
        chosen = check_name("a watermark (name=..)", name or name_of_class(column))
        self._builder.claim("watermark", chosen)
        return self._of(self._builder.add(lambda id: EventTimeNode(id, chosen, self._node, declared)))

    @property
    def rejected(self) -> Self:
        """Directly after :meth:`with_watermark`: the rejected rows, with all their columns."""
        if not isinstance(self._builder.nodes[self._node], EventTimeNode):
            raise PipelineError(
                "rejected: only the stream that with_watermark() returns has rejected rows. Use .rejected directly "
                "after with_watermark()."
            )
        return self._side(REJECTED)

    @property
    def late(self) -> Self:
        """Directly after an operator over event time: the rows that were too late for it, unchanged."""
        node = self._builder.nodes[self._node]
        if not isinstance(node, OperatorNode) or not any(
            node.operator.may_be_late(number) for number in range(len(node.inputs))
        ):
            raise PipelineError(
                "late: this stream has no late rows. Only windows, joins and timers over event time leave late rows "
                "out. Use .late directly after such an operator, before any other verb."
            )
        return self._side(LATE)

    @property
    def left_late(self) -> Self:
        """Directly after a join of two streams: the rows of the left stream that were too late for it, unchanged."""
        return self._late_of(0)

    @property
    def right_late(self) -> Self:
        """Directly after a join of two streams: the rows of the right stream (the versions) that were too late."""
        return self._late_of(1)

    def _late_of(self, input: int) -> Self:
        side = LATE_OF_INPUT[input]
        joined = self._builder.nodes[self._node]
        if not isinstance(joined, OperatorNode) or len(joined.inputs) != len(LATE_OF_INPUT):
            raise PipelineError(
                f"{side}: only a join of two streams has it. Use .{side} directly after the join, before any other "
                "verb. For other operators over event time use .late."
            )
        if not joined.operator.may_be_late(input):
            raise PipelineError(f"{side}: rows of that stream are never late for operator {joined.operator.name!r}.")
        return self._side(side)

    def _side(self, name: str) -> Self:
        return self._of(self._builder.add(lambda id: SideNode(id, self._node, name)))
