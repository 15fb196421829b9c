"""The graph of a pipeline: frozen nodes, in the order in which the author made them; built without a Spark session.

Analysis (``pipeline.analysis``) and the engine's planner walk the same nodes; a later feature (windows, feedback,
broadcast) is a new node type and one case in each of the two walks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from epochal.pipeline.aggregates import MergeableAggregate
    from epochal.pipeline.expressions import Expression
    from epochal.pipeline.keyed import BatchFunction, KeyedProcess
    from epochal.snapshots.store import SnapshotStore

NodeId = int


@dataclass(frozen=True)
class SourceNode:
    """``make`` gives a fresh :class:`Source` for each attempt; ``description`` is for people, without secrets."""

    id: NodeId
    name: str
    make: Callable[[], Source]
    description: dict[str, Any]


@dataclass(frozen=True)
class StaticNode:
    """A table that does not stream: read anew by each execution attempt, not part of any slice."""

    id: NodeId
    name: str
    read: Callable[[SparkSession], DataFrame]
    description: dict[str, Any]


@dataclass(frozen=True)
class TransformNode:
    """``function`` from the inputs' DataFrames to one DataFrame: every stateless verb is one of these."""

    id: NodeId
    label: str
    inputs: tuple[NodeId, ...]
    function: Callable[..., DataFrame]
    expressions: tuple[Expression, ...] = ()
    """Over the first input, what the verb computes."""
    by_author: bool = False
    """Whether ``function`` is the author's own: what it computes is known from its plan alone."""


@dataclass(frozen=True, eq=False)
class Aggregation:
    """One output column of ``aggregate``: its name, and the author's aggregate expression or own aggregate.

    ``pipeline.aggregation`` turns it into partial columns, a merge per partial column, and a final expression.
    """

    name: str
    expression: Expression | MergeableAggregate


@dataclass(frozen=True)
class AggregateNode:
    """Keyed aggregate: Spark aggregates the slice, the state table merges it."""

    id: NodeId
    name: str
    input: NodeId
    keys: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]
    queryable: bool


@dataclass(frozen=True)
class ProcessNode:
    """Keyed process: the author's class, called once per key and epoch with that key's rows in order."""

    id: NodeId
    name: str
    input: NodeId
    keys: tuple[str, ...]
    process: type[KeyedProcess]


@dataclass(frozen=True)
class ProcessBatchNode:
    """Arrow in, Arrow out, once per subtask and epoch, with bulk access to state."""

    id: NodeId
    name: str
    input: NodeId
    keys: tuple[str, ...]
    function: BatchFunction


@dataclass(frozen=True)
class SinkNode:
    """``make`` gives the sink's backend; it is serialised to the tasks."""

    id: NodeId
    name: str
    input: NodeId
    make: Callable[[SinkPlace], SinkBackend]
    description: dict[str, Any]

    def backend(self, store: SnapshotStore | None = None) -> SinkBackend:
        """The sink's backend; without a ``store``, one that is only asked what it is and whether rows would fit."""
        return self.make(SinkPlace(self.name, store))


OperatorNode = AggregateNode | ProcessNode | ProcessBatchNode
Node = SourceNode | StaticNode | TransformNode | OperatorNode | SinkNode


def inputs(node: Node) -> tuple[NodeId, ...]:
    """The nodes that ``node`` reads."""
    match node:
        case SourceNode() | StaticNode():
            return ()
        case TransformNode():
            return node.inputs
        case _:
            return (node.input,)


@dataclass(frozen=True)
class Graph:
    """All nodes by id, in topological order (a node's inputs come before it). ``name`` is the pipeline's."""

    name: str
    nodes: tuple[Node, ...]

    def node(self, id: NodeId) -> Node:
        return self.nodes[id]

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def static_tables(self) -> tuple[StaticNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, StaticNode))

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, OperatorNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

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
