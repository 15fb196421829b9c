"""Loops: streams whose rows come from further down the same pipeline, in an earlier epoch."""

from __future__ import annotations

from epochal.declarations.feedback import Feedback
from epochal.errors import PipelineError
from epochal.operators.loops.plan import Closing, WithinBound
from epochal.pipeline import kinds
from epochal.pipeline.graph import Builder, CloseNode, EventTimeNode, FeedbackNode, Graph, NodeId, TransformNode
from epochal.pipeline.stream import Stream


class Loop(Stream):
    """What :meth:`Pipeline.feedback` gives: the stream of what goes round, and :meth:`close`, which says what does."""

    def __init__(self, builder: Builder, node: NodeId, head: FeedbackNode) -> None:
        super().__init__(builder, node)
        self._head = head

    def close(self, stream: Stream) -> None:
        """Let these rows go round: they come out of the loop in the next epoch, or, where slices are bounded, later.

        They have the columns of the loop's schema, of the same types, in any order, and no others.
        """
        name, feedback = self._head.name, self._head.feedback
        if not isinstance(stream, Stream):
            raise PipelineError(f"Loop {name!r}: close() takes a stream of this pipeline, not {stream!r}.")
        self._check_same_pipeline(stream, "close")
        if any(isinstance(node, CloseNode) and node.name == name for node in self._builder.nodes):
            raise PipelineError(f"Loop {name!r} is closed twice: union() the streams, and close it once.")
        label = f"records of {name}"
        records = self._builder.add(lambda id: TransformNode(id, label, (stream._node,), Closing(feedback), kinds.kept))
        self._builder.add(lambda id: CloseNode(id, feedback, records))

    def dead_letters(self) -> Stream:
        """The rows that have gone round more often than ``max_hops``, with their ``_hop``.

        They come out here in the epoch in which they would have come out of the loop once more. Where nobody reads
        them, they are left out.
        """
        feedback = self._head.feedback
        if feedback.max_hops is None:
            raise PipelineError(
                f"Loop {self._head.name!r} has no dead letters without a bound: say feedback(.., max_hops=..)."
            )
        return Stream(
            self._builder, _bounded(self._builder, self._head, f"more than {feedback.max_hops} hops", beyond=True)
        )


def loop(builder: Builder, feedback: Feedback) -> Loop:
    """The head of a loop; where hops have a bound, what it gives is within it."""
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
    """Raises ``PipelineError`` for a loop that is not closed, or not read, and for event time behind one."""
    closed = {tail.name for tail in graph.tails}
    for head in graph.loops:
        if head.name not in closed:
            raise PipelineError(
                f"Loop {head.name!r} is not closed: call close(stream) with the rows that go round again."
            )
        if head.id not in graph.needed:
            raise PipelineError(f"Nothing reads loop {head.name!r}: use it, or remove it.")
    for node in graph.nodes:
        if isinstance(node, EventTimeNode):
            above = graph.ancestors([node.id])
            for head in graph.loops:
                if head.id in above:
                    raise PipelineError(
                        f"with_watermark({node.event_time.column!r}) is behind loop {head.name!r}: no watermark passes "
                        "a loop, as a record that goes round would be late by the next round. Declare it before the "
                        "loop, and keep windows and joins over event time before or beside it."
                    )


def unread_dead_letters(graph: Graph) -> tuple[str, ...]:
    """The loops whose hops have a bound, and whose dead letters nobody reads."""
    read = {
        graph.node(node.inputs[0]).id
        for node in graph.nodes
        if isinstance(node, TransformNode) and isinstance(node.function, WithinBound) and node.function.beyond
    }
    return tuple(head.name for head in graph.loops if head.feedback.max_hops is not None and head.id not in read)
