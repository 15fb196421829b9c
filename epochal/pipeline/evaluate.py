"""The one walk over a graph with Spark at hand. Analysis and the engine's planner both take it.

What a source, a table or an operator gives is the caller's: empty frames for analysis, the slice and the stateful job
for the engine. Transforms and what they mean are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from epochal.contracts.source import PARTITION
from epochal.declarations.expressions import with_spark
from epochal.declarations.sides import LATE_OF_INPUT
from epochal.declarations.spark_errors import at
from epochal.errors import PipelineError
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    FeedbackNode,
    Graph,
    Node,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
    inputs,
    place,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from epochal.operators.contract import OperatorPlan
    from epochal.pipeline.statements import Chain, Statements


def evaluate(
    graph: Graph,
    *,
    source: Callable[[SourceNode], DataFrame],
    table: Callable[[StaticNode], DataFrame],
    operator: Callable[[OperatorNode, list[DataFrame]], DataFrame],
    event_time: Callable[[EventTimeNode, DataFrame], DataFrame],
    side: Callable[[SideNode], DataFrame],
    loop: Callable[[FeedbackNode], DataFrame],
    frames: dict[NodeId, DataFrame] | None = None,
    carrying: Collection[NodeId] = (),
    statements: Statements | None = None,
    needed: Collection[NodeId] | None = None,
) -> dict[NodeId, DataFrame]:
    """The DataFrame of every node that an operator, a sink or a loop needs; a sink's, and a tail's, is its input.

    ``operator`` gets the node and its inputs, ``event_time`` a declaration and its input; ``side`` is asked after that
    for the sides of a node, ``loop`` for the head of a loop. ``frames`` is filled on the way, and returned.
    ``carrying``: the nodes whose frames have the column ``source.PARTITION``, for those among them that carry it on to
    a declaration (``pipeline.partitions``). ``statements``: chains of verbs are made by those that are known, so that
    only the last of their verbs has a frame. ``needed``: these nodes and no others.
    Raises ``PipelineError`` naming the transform that cannot be made.
    """
    frames = {} if frames is None else frames

    def read(id: NodeId) -> DataFrame:
        return frames[id].drop(PARTITION) if id in carrying else frames[id]

    def input_of(chain: Chain) -> DataFrame:
        return frames[chain.input] if chain.last.id in carrying else read(chain.input)

    def by_verb(node: TransformNode) -> DataFrame:
        if node.id not in carrying:
            return _transformed(graph, node, node.function, list(map(read, node.inputs)))
        first, *others = node.inputs
        return _transformed(graph, node, node.carrying or node.function, [frames[first], *map(read, others)])

    known = {} if statements is None else statements.known
    within = {verb.id for chain in known.values() for verb in chain.nodes[:-1]}
    for node in graph.nodes:
        if node.id not in (graph.needed if needed is None else needed) or node.id in within:
            continue
        match node:
            case SourceNode():
                frames[node.id] = source(node)
            case StaticNode():
                frames[node.id] = table(node)
            case TransformNode():
                chain = known.get(node.id)
                frame = None if statements is None or chain is None else statements.frame(chain, input_of(chain))
                if frame is not None:
                    frames[node.id] = frame
                else:  # of a chain the verb that is wrong says so
                    frames.update((verb.id, by_verb(verb)) for verb in (chain.nodes if chain else (node,)))
            case EventTimeNode():
                frames[node.id] = event_time(node, frames[node.input])
            case SideNode():
                frames[node.id] = side(node)
            case FeedbackNode():
                frames[node.id] = loop(node)
            case SinkNode() | CloseNode():
                frames[node.id] = read(node.input)
            case OperatorNode():
                frames[node.id] = operator(node, list(map(read, node.inputs)))
    if statements is not None:
        statements.learn(frames, input_of)
    return frames


def empty_side(
    graph: Graph, node: SideNode, frames: Mapping[NodeId, DataFrame], plans: Mapping[NodeId, OperatorPlan]
) -> DataFrame:
    """A side's columns, without rows. ``frames``: of the nodes before it; ``plans``: of the operators before it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if node.by_engine:
        owner = graph.node(node.input)
        above = [frames[id].limit(0) for id in inputs(owner)]
        return kept_out(owner, above, node.side)
    spark = frames[node.input].sparkSession
    return spark.createDataFrame([], from_arrow_schema(plans[node.input].sides[node.side]))


def kept_out(node: Node, frames: Sequence[DataFrame], side: str) -> DataFrame:
    """The stream ``side`` of what the engine keeps from a node, from the rows that it keeps from each of its inputs.

    Raises ``PipelineError`` where late rows of several inputs cannot be one stream.
    """
    if not isinstance(node, OperatorNode):
        return frames[0]
    if side in LATE_OF_INPUT:
        return frames[LATE_OF_INPUT.index(side)]
    late = [frame for number, frame in enumerate(frames) if node.operator.may_be_late(number)]
    _check_one_stream(node.operator.name, late)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), late)


def _check_one_stream(operator: str, late: Sequence[DataFrame]) -> None:
    types: dict[str, str] = {}
    for frame in late:
        for name, type in frame.dtypes:
            if types.setdefault(name.casefold(), type) != type:
                raise PipelineError(
                    f"Operator {operator!r}: the late rows of both streams cannot be one stream, as column {name!r} is "
                    f"{types[name.casefold()]} in one and {type} in the other. Take left_late and right_late."
                )


def _transformed(
    graph: Graph, node: TransformNode, function: Callable[..., DataFrame], frames: list[DataFrame]
) -> DataFrame:
    from pyspark.sql import DataFrame

    with at(place(graph, node.id)), with_spark():
        frame = function(*frames)
        if not isinstance(frame, DataFrame):
            raise PipelineError(f"the function gave {type(frame).__name__}, not a DataFrame. Return the DataFrame.")
        return frame
