"""Loops: streams whose rows were written to the end of the loop in earlier epochs."""

from __future__ import annotations

from epochal.declarations.feedback import Feedback
from epochal.errors import PipelineError
from epochal.operators.loops.plan import Closing, WithinBound
from epochal.pipeline import kinds
from epochal.pipeline.graph import Builder, CloseNode, EventTimeNode, FeedbackNode, Graph, NodeId, TransformNode
from epochal.pipeline.stream import Stream


class Loop(Stream):
    """The result of :meth:`Pipeline.feedback`: the stream of the records of the loop, and :meth:`close`."""

    def __init__(self, builder: Builder, node: NodeId, head: FeedbackNode) -> None:
        super().__init__(builder, node)
        self._head = head

    def close(self, stream: Stream) -> None:
        """Write rows to the loop. They appear in its stream in the next epoch, or later if slices are bounded.

        The rows must have exactly the columns of the schema of the loop, with the same types, in any order.
        """
        name, feedback = self._head.name, self._head.feedback
        if not isinstance(stream, Stream):
            raise PipelineError(f"Loop {name!r}: close() takes a stream of this pipeline, not {stream!r}.")
        self._check_same_pipeline(stream, "close")
        if any(isinstance(node, CloseNode) and node.name == name for node in self._builder.nodes):
            raise PipelineError(
                f"Loop {name!r} is closed twice. Combine the streams with union() and close the loop once."
            )
        label = f"records of {name}"
        records = self._builder.add(lambda id: TransformNode(id, label, (stream._node,), Closing(feedback), kinds.kept))
        self._builder.add(lambda id: CloseNode(id, feedback, records))

    def dead_letters(self) -> Stream:
        """The records that exceed ``max_hops``, with their ``_hop``.

        A record appears here in the epoch in which it would have appeared in the loop again. If this stream is not
        used, these records are dropped.
        """
        feedback = self._head.feedback
        if feedback.max_hops is None:
            raise PipelineError(
                f"Loop {self._head.name!r} has no dead letters without max_hops. Add feedback(.., max_hops=..)."
            )
        return Stream(
            self._builder, _bounded(self._builder, self._head, f"more than {feedback.max_hops} hops", beyond=True)
        )


def loop(builder: Builder, feedback: Feedback) -> Loop:
    """The head of a loop. If hops are bounded, its stream contains the records within the bound."""
    id = builder.add(lambda id: FeedbackNode(id, feedback))
    head = FeedbackNode(id, feedback)
    within = id if feedback.max_hops is None else _bounded(builder, head, f"at most {feedback.max_hops} hops")
    return Loop(builder, within, head)


def _bounded(builder: Builder, head: FeedbackNode, label: str, beyond: bool = False) -> NodeId:
    feedback = head.feedback
    assert feedback.max_hops is not None
    chosen = WithinBound(feedback.max_hops, feedback.counts_hops, beyond)
    return builder.add(lambda id: TransformNode(id, label, (head.id,), chosen, kinds.kept))


def check_loops(graph: Graph) -> None:
    """Raises ``PipelineError`` for a loop that is not closed or not used, and for event time after a loop."""
    closed = {tail.name for tail in graph.tails}
    for head in graph.loops:
        if head.name not in closed:
            raise PipelineError(
                f"Loop {head.name!r} is not closed. Call close(stream) with the rows to write to the loop."
            )
        if head.id not in graph.needed:
            raise PipelineError(f"Loop {head.name!r} is not used. Use it, or remove it.")
    for node in graph.nodes:
        if isinstance(node, EventTimeNode):
            above = graph.ancestors([node.id])
            for head in graph.loops:
                if head.id in above:
                    raise PipelineError(
                        f"with_watermark({node.event_time.column!r}) is after loop {head.name!r}: a watermark cannot "
                        "pass a loop, because a record that stays in the loop would be late in the next round. Declare "
                        "it before the loop, and keep windows and joins over event time outside the loop."
                    )


def unread_dead_letters(graph: Graph) -> tuple[str, ...]:
    """The loops with bounded hops whose dead letters are not used."""
    read = {
        graph.node(node.inputs[0]).id
        for node in graph.nodes
        if isinstance(node, TransformNode) and isinstance(node.function, WithinBound) and node.function.beyond
    }
    return tuple(head.name for head in graph.loops if head.feedback.max_hops is not None and head.id not in read)
