"""The graph of a pipeline: frozen nodes, in the order in which the author made them; built without a Spark session.

Analysis (``pipeline.analysis``) and the engine's planner walk the same nodes. What an operator is, its node's
:class:`~epochal.operators.contract.Operator` says: another kind of operator is no other kind of node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery, Guarantee
from epochal.contracts.source import Source
from epochal.contracts.stream_kind import Accepted, StreamKind
from epochal.declarations.event_time import EventTime
from epochal.declarations.feedback import Feedback
from epochal.declarations.sides import RESERVED_SIDES
from epochal.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from epochal.declarations.expressions import Expression
    from epochal.operators.contract import Operator
    from epochal.snapshots.store import SnapshotStore
    from epochal.state.table import Column

NodeId = int
KindOf = Callable[[Sequence[StreamKind]], StreamKind]
"""The kind of the stream that a verb returns, from the kinds of its input streams (tables have none)."""
Columns = frozenset[str] | None
"""Names of columns, in lower case; ``None``: all columns, or unknown."""
ColumnsOf = Callable[[Columns], Columns]
"""The columns that a verb needs of its inputs, from those that are needed of its output."""


@dataclass(frozen=True)
class SourceNode:
    """``make`` gives a fresh :class:`Source` for each attempt; ``description`` is for people, without secrets."""

    id: NodeId
    name: str
    make: Callable[[], Source]
    description: dict[str, Any]


@dataclass(frozen=True)
class StaticNode:
    """A table that does not stream: read by each execution attempt, again after ``refresh`` microseconds of epoch time,
    and not part of any slice."""

    id: NodeId
    name: str
    read: Callable[[SparkSession], DataFrame]
    description: dict[str, Any]
    refresh: int | None = None


@dataclass(frozen=True)
class TransformNode:
    """``function`` from the inputs' DataFrames to one DataFrame: every stateless verb is one of these."""

    id: NodeId
    label: str
    inputs: tuple[NodeId, ...]
    function: Callable[..., DataFrame]
    kind_of: KindOf
    expressions: tuple[Expression, ...] = ()
    """Over the first input, what the verb computes."""
    by_author: bool = False
    """Whether ``function`` is the author's own: what it computes is known from its plan alone."""
    carrying: Callable[..., DataFrame] | None = None
    """As ``function``, of a verb that gives rows of its first input, each with its column ``source.PARTITION``."""
    columns_of: ColumnsOf | None = None
    """Which columns it needs of its streams; ``None``: all."""
    per_epoch: bool = False
    """Whether ``function`` may compute over all rows of an epoch, so that its result depends on the cut into epochs."""


@dataclass(frozen=True)
class EventTimeNode:
    """``with_watermark``: from here on rows have an event time. ``name``: of the declaration, in every snapshot."""

    id: NodeId
    name: str
    input: NodeId
    event_time: EventTime


@dataclass(frozen=True)
class OperatorNode:
    """A stateful operator over ``inputs``, in the order of ``operator.inputs``."""

    id: NodeId
    inputs: tuple[NodeId, ...]
    operator: Operator

    @property
    def name(self) -> str:
        return self.operator.name


@dataclass(frozen=True)
class SideNode:
    """A stream beside that of ``input``: rows that an operator gives to a ``side`` of that name, or, where its name
    is reserved (``late``, ``rejected``), those that the engine keeps from an operator or an event time's readers."""

    id: NodeId
    input: NodeId
    side: str

    @property
    def by_engine(self) -> bool:
        """Whether it is a part of what ``input`` reads, so that the operator's task has nothing to do with it."""
        return self.side in RESERVED_SIDES


@dataclass(frozen=True)
class FeedbackNode:
    """The head of a loop: the records that its tail took in earlier epochs. To the graph it is a beginning."""

    id: NodeId
    feedback: Feedback

    @property
    def name(self) -> str:
        return self.feedback.name


@dataclass(frozen=True)
class CloseNode:
    """The tail of a loop: what it reads comes out of the head in later epochs. To the graph it is an end."""

    id: NodeId
    feedback: Feedback
    input: NodeId

    @property
    def name(self) -> str:
        return self.feedback.name


@dataclass(frozen=True)
class SinkNode:
    """``make`` gives the sink's backend; it is serialised to the tasks. ``takes``: the kinds of stream to write.

    ``deliveries``, ``delivery``: as in :class:`~epochal.pipeline.definitions.SinkDefinition`.
    """

    id: NodeId
    name: str
    input: NodeId
    make: Callable[[SinkPlace], SinkBackend]
    takes: Accepted
    description: dict[str, Any]
    deliveries: tuple[Delivery, ...] = ("exactly_once",)
    delivery: Delivery | None = None

    def backend(self, store: SnapshotStore | None = None, guarantee: Guarantee = "exactly_once") -> SinkBackend:
        """The sink's backend; without a ``store``, one that is only asked what it is and whether rows would fit."""
        return self.make(SinkPlace(self.name, store, self.delivered(guarantee)))

    def delivered(self, guarantee: Guarantee) -> Delivery:
        """How its rows are delivered in an application with this guarantee, which a sink that cannot do less keeps."""
        if self.delivery is not None:
            return self.delivery
        return guarantee if guarantee in self.deliveries else "exactly_once"


Node = (
    SourceNode
    | StaticNode
    | FeedbackNode
    | TransformNode
    | EventTimeNode
    | OperatorNode
    | SideNode
    | CloseNode
    | SinkNode
)


def inputs(node: Node) -> tuple[NodeId, ...]:
    """The nodes that ``node`` reads."""
    match node:
        case SourceNode() | StaticNode() | FeedbackNode():
            return ()
        case TransformNode() | OperatorNode():
            return node.inputs
        case EventTimeNode() | SideNode() | CloseNode() | SinkNode():
            return (node.input,)


@dataclass(frozen=True)
class Graph:
    """All nodes by id, in topological order (a node's inputs come before it). ``name`` is the pipeline's."""

    name: str
    nodes: tuple[Node, ...]

    def node(self, id: NodeId) -> Node:
        return self.nodes[id]

    def operator_above(self, id: NodeId) -> str:
        """The name of the operator whose output comes to a node by way of stateless verbs."""
        node = self.node(id)
        while isinstance(node, TransformNode):
            node = self.node(node.inputs[0])
        assert isinstance(node, OperatorNode)
        return node.operator.name

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def static_tables(self) -> tuple[StaticNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, StaticNode))

    @property
    def declarations(self) -> tuple[EventTimeNode, ...]:
        """Where event time is declared."""
        return tuple(node for node in self.nodes if isinstance(node, EventTimeNode))

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, OperatorNode))

    def sides(self, id: NodeId) -> tuple[SideNode, ...]:
        """The readers of the sides of node ``id``."""
        return tuple(node for node in self.nodes if isinstance(node, SideNode) and node.input == id)

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    @property
    def loops(self) -> tuple[FeedbackNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, FeedbackNode))

    @property
    def columns_of_loops(self) -> dict[str, tuple[Column, ...]]:
        return {node.name: node.feedback.columns for node in self.loops}

    @property
    def tails(self) -> tuple[CloseNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, CloseNode))

    @cached_property
    def needed(self) -> frozenset[NodeId]:
        """Operators, sinks and tails of loops, and every node that they read: what has to be evaluated."""
        ends = OperatorNode | SinkNode | CloseNode
        return self.ancestors(node.id for node in self.nodes if isinstance(node, ends))

    def consumers(self, id: NodeId) -> tuple[NodeId, ...]:
        """The nodes that read node ``id``, once for each time they read it."""
        return tuple(node.id for node in self.nodes for input in inputs(node) if input == id)

    def ancestors(self, ids: Iterable[NodeId]) -> frozenset[NodeId]:
        """``ids`` and every node that they read, directly or not: what has to be evaluated for them."""
        found = set(ids)
        for node in reversed(self.nodes):
            if node.id in found:
                found.update(inputs(node))
        return frozenset(found)


def counts_hops(nodes: Sequence[Node], ids: Iterable[NodeId]) -> bool:
    """Whether rows of these nodes come out of a loop whose records carry their hops."""
    above = Graph("", tuple(nodes)).ancestors(ids)
    return any(isinstance(node, FeedbackNode) and node.feedback.counts_hops for node in nodes if node.id in above)


def place(graph: Graph, id: NodeId) -> str:
    """Where a node is, for people: ``where(delay > 0) after source 'flights'``."""
    node = graph.node(id)
    match node:
        case SourceNode():
            return f"source {node.name!r}"
        case StaticNode():
            return f"table {node.name!r}"
        case TransformNode():
            origin = graph.node(node.inputs[0])
            while isinstance(origin, TransformNode):
                origin = graph.node(origin.inputs[0])
            return f"{node.label} after {place(graph, origin.id)}"
        case EventTimeNode():
            return f"with_watermark({node.event_time.column!r})"
        case SideNode():
            return f"side {node.side!r} of {place(graph, node.input)}"
        case FeedbackNode():
            return f"loop {node.name!r}"
        case CloseNode():
            return f"close() of loop {node.name!r}"
        case SinkNode():
            return f"sink {node.name!r}"
        case OperatorNode():
            return f"operator {node.name!r}"


_TIMED = ("operator", "watermark")
"""What has watermarks in a snapshot, by one name."""


class Builder:
    """The nodes so far, and the names that are taken. Shared by a pipeline and all its streams."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._names: set[tuple[str, str]] = set()

    def copy(self) -> Builder:
        """To add to, while this one stays as it is."""
        other = Builder()
        other.nodes, other._names = list(self.nodes), set(self._names)
        return other

    def add(self, make: Callable[[NodeId], Node]) -> NodeId:
        """Append the node that ``make`` gives for the next id."""
        id = len(self.nodes)
        self.nodes.append(make(id))
        return id

    def claim(self, kind: str, name: str) -> None:
        """Take ``name``. Raises ``PipelineError`` when there is a ``kind`` of this name."""
        if (kind, name) in self._names:
            several = "entries" if kind == "entry" else f"{kind}s"
            raise PipelineError(f"There are two {several} named {name!r}: give one of them another name.")
        if kind in _TIMED and self._names.intersection((other, name) for other in _TIMED):
            raise PipelineError(
                f"An operator and a watermark are both named {name!r}: give one of them another name (name=..)."
            )
        self._names.add((kind, name))
