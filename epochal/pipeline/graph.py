"""The graph of a pipeline: frozen nodes in the order of their creation, built without a Spark session.

Analysis (``pipeline.analysis``) and the planner of the engine use the same nodes. All operators have one kind of node,
which contains an :class:`~epochal.operators.contract.Operator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Configuration, Delivery, Guarantee
from epochal.contracts.source import Source
from epochal.contracts.stream_kind import Accepted, StreamKind
from epochal.declarations.event_time import EventTime
from epochal.declarations.feedback import Feedback
from epochal.declarations.sides import RESERVED_SIDES
from epochal.errors import PipelineError
from epochal.pipeline.code_lines import CodeLine, calling_line
from epochal.pipeline.parallelism import Scaled

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
    """``make`` creates a new :class:`Source` for each attempt. ``description`` is shown to users, without secrets."""

    id: NodeId
    name: str
    make: Callable[[], Source]
    description: dict[str, Any]
    note: str | None = None


@dataclass(frozen=True)
class StaticNode:
    """A table that does not stream. Each attempt reads it, and again after ``refresh`` microseconds of epoch time. It
    is not part of slices."""

    id: NodeId
    name: str
    read: Callable[[SparkSession], DataFrame]
    description: dict[str, Any]
    refresh: int | None = None


@dataclass(frozen=True)
class TransformNode:
    """A stateless verb: ``function`` from the DataFrames of the inputs to one DataFrame."""

    id: NodeId
    label: str
    inputs: tuple[NodeId, ...]
    function: Callable[..., DataFrame]
    kind_of: KindOf
    expressions: tuple[Expression, ...] = ()
    """The expressions of the verb, over the first input."""
    by_author: bool = False
    """True for a function of the author, whose computation is only visible in its plan."""
    carrying: Callable[..., DataFrame] | None = None
    """``function`` for rows with the column ``source.PARTITION``, if each output row belongs to one row of the first
    input."""
    columns_of: ColumnsOf | None = None
    """The columns that the verb needs of its streams; ``None``: all."""
    per_epoch: bool = False
    """True if ``function`` can compute over all rows of an epoch, so that its result depends on epoch boundaries."""


@dataclass(frozen=True)
class EventTimeNode:
    """``with_watermark``: the declaration of event time. ``name``: its name in snapshots."""

    id: NodeId
    name: str
    input: NodeId
    event_time: EventTime


@dataclass(frozen=True)
class OperatorNode:
    """A stateful operator over ``inputs``, in the order of ``operator.inputs``. ``parallelism``: its declared number of
    subtasks; ``None``: that of the application."""

    id: NodeId
    inputs: tuple[NodeId, ...]
    operator: Operator
    parallelism: int | None = None

    @property
    def name(self) -> str:
        return self.operator.name


@dataclass(frozen=True)
class SideNode:
    """A side output of ``input``: rows that an operator writes to the ``side``, or, for a reserved name (``late``,
    ``rejected``), rows that the engine removes from the input of an operator or after a declaration of event time."""

    id: NodeId
    input: NodeId
    side: str

    @property
    def by_engine(self) -> bool:
        """True if the rows are a part of the rows that ``input`` reads, so that the operator's task does not write
        them."""
        return self.side in RESERVED_SIDES


@dataclass(frozen=True)
class FeedbackNode:
    """The head of a loop: the records that its tail received in earlier epochs. The graph treats it as a source."""

    id: NodeId
    feedback: Feedback

    @property
    def name(self) -> str:
        return self.feedback.name


@dataclass(frozen=True)
class CloseNode:
    """The tail of a loop: its rows appear at the head in later epochs. The graph treats it as a sink."""

    id: NodeId
    feedback: Feedback
    input: NodeId

    @property
    def name(self) -> str:
        return self.feedback.name


@dataclass(frozen=True)
class Rejects:
    """The rows that the sink named ``sink`` rejects; ``most``: their maximum number in an epoch."""

    sink: str
    most: int


@dataclass(frozen=True)
class SinkNode:
    """``make`` creates the backend of the sink, which is serialised to tasks. ``takes``: the accepted kinds of stream.

    ``deliveries``, ``delivery``, ``note``: as in :class:`~epochal.pipeline.definitions.SinkDefinition`. ``rejects``:
    set if its rows are those that another sink rejects, which is then its ``input``.
    """

    id: NodeId
    name: str
    input: NodeId
    make: Callable[[SinkPlace], SinkBackend]
    takes: Accepted
    description: dict[str, Any]
    deliveries: tuple[Delivery, ...] = ("exactly_once",)
    delivery: Delivery | None = None
    note: str | None = None
    rejects: Rejects | None = None

    def backend(self, store: SnapshotStore | None = None, guarantee: Guarantee = "exactly_once") -> SinkBackend:
        """The backend of the sink; without a ``store``, only for descriptions and checks of types."""
        return self.make(SinkPlace(self.name, store, self.delivered(guarantee)))

    def delivered(self, guarantee: Guarantee) -> Delivery:
        """The delivery of its rows in an application with this guarantee. A sink without this delivery is
        exactly-once."""
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
    """All nodes by id, in topological order (inputs before their readers). ``name``: the name of the pipeline.
    ``lines``: by id, the lines that define the nodes; empty, or ``None`` for a node, if they are not known."""

    name: str
    nodes: tuple[Node, ...]
    lines: tuple[CodeLine | None, ...] = field(default=(), compare=False)

    def node(self, id: NodeId) -> Node:
        return self.nodes[id]

    def operator_above(self, id: NodeId) -> str:
        """The name of the operator whose output reaches a node through stateless verbs."""
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
        """The declarations of event time."""
        return tuple(node for node in self.nodes if isinstance(node, EventTimeNode))

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, OperatorNode))

    @property
    def scaled(self) -> tuple[Scaled, ...]:
        """The operators with their declared numbers of subtasks."""
        return tuple(Scaled(node.name, node.operator.scaled_as, node.parallelism) for node in self.operators)

    def subtasks(self, configuration: Configuration) -> dict[str, int]:
        """The number of subtasks of each operator."""
        return {each.operator: each.subtasks(configuration) for each in self.scaled}

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
        """The nodes to evaluate: operators, sinks and tails of loops, and all nodes that they read."""
        ends = OperatorNode | SinkNode | CloseNode
        return self.ancestors(node.id for node in self.nodes if isinstance(node, ends))

    def consumers(self, id: NodeId) -> tuple[NodeId, ...]:
        """The nodes that read node ``id``. A node that reads it twice is listed twice."""
        return tuple(node.id for node in self.nodes for input in inputs(node) if input == id)

    def ancestors(self, ids: Iterable[NodeId]) -> frozenset[NodeId]:
        """``ids`` and all nodes that they read, directly or indirectly."""
        found = set(ids)
        for node in reversed(self.nodes):
            if node.id in found:
                found.update(inputs(node))
        return frozenset(found)


def counts_hops(nodes: Sequence[Node], ids: Iterable[NodeId]) -> bool:
    """Return whether rows of these nodes come from a loop whose records store their hops."""
    above = Graph("", tuple(nodes)).ancestors(ids)
    return any(isinstance(node, FeedbackNode) and node.feedback.counts_hops for node in nodes if node.id in above)


def place(graph: Graph, id: NodeId) -> str:
    """The place of a node in messages: ``where(delay > 0) after source 'flights'``."""
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
"""Kinds that share one namespace, because both have watermarks in snapshots."""


class Builder:
    """The nodes and the used names. A pipeline and all of its streams share one builder."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.lines: list[CodeLine | None] = []
        self._names: set[tuple[str, str]] = set()

    def copy(self) -> Builder:
        """A copy; adding nodes to it does not change this one."""
        other = Builder()
        other.nodes, other.lines, other._names = list(self.nodes), list(self.lines), set(self._names)
        return other

    def add(self, make: Callable[[NodeId], Node], line: CodeLine | None = None) -> NodeId:
        """Append the node that ``make`` creates for the next id. ``line``: the line that defines it, if that is not
        the author's call."""
        id = len(self.nodes)
        self.nodes.append(make(id))
        self.lines.append(line or calling_line())
        return id

    def claim(self, kind: str, name: str) -> None:
        """Reserve ``name``. Raises ``PipelineError`` if a ``kind`` with this name exists."""
        if (kind, name) in self._names:
            several = "entries" if kind == "entry" else f"{kind}s"
            raise PipelineError(f"Two {several} are named {name!r}. Rename one of them.")
        if kind in _TIMED and self._names.intersection((other, name) for other in _TIMED):
            raise PipelineError(f"An operator and a watermark are both named {name!r}. Rename one of them (name=..).")
        self._names.add((kind, name))
