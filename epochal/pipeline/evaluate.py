"""Evaluation of a graph with Spark, for analysis and for the planner of the engine.

The caller supplies the frames of sources, tables and operators: empty frames for analysis, the slice and the stateful
job for the engine. Transforms are the same for both.
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
from epochal.tasks.dead_letters import DEAD_LETTER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """The DataFrame of each node that an operator, a sink or a loop needs; for sinks and tails of loops, the input.

    ``operator`` gets the node and its inputs, ``event_time`` a declaration and its input. ``side`` returns a side
    output of a previous node, ``loop`` the head of a loop. ``frames`` is filled and returned. ``carrying``: the nodes
    whose frames have the column ``source.PARTITION`` (see ``pipeline.event_time``). ``statements``: known chains of
    verbs are evaluated as one statement, so that only the last verb of a chain has a frame. ``needed``: evaluate only
    these nodes. Raises ``PipelineError`` that names the transform that fails.
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
                else:  # if a chain fails, its verbs report the error
                    frames.update((verb.id, by_verb(verb)) for verb in (chain.nodes if chain else (node,)))
            case EventTimeNode():
                frames[node.id] = event_time(node, frames[node.input])
            case SideNode():
                frames[node.id] = side(node)
            case FeedbackNode():
                frames[node.id] = loop(node)
            case SinkNode() if node.rejects is not None:
                frames[node.id] = no_dead_letters(frames[node.input].sparkSession)
            case SinkNode() | CloseNode():
                frames[node.id] = read(node.input)
            case OperatorNode():
                frames[node.id] = operator(node, list(map(read, node.inputs)))
    if statements is not None:
        statements.learn(frames, input_of)
    return frames


def no_dead_letters(spark: SparkSession) -> DataFrame:
    """The columns of dead letters, without rows: the task of their sink writes them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows: DataFrame = spark.createDataFrame([], from_arrow_schema(DEAD_LETTER))
    return rows


def empty_side(
    graph: Graph, node: SideNode, frames: Mapping[NodeId, DataFrame], plans: Mapping[NodeId, OperatorPlan]
) -> DataFrame:
    """The columns of a side, without rows. ``frames``: the previous nodes; ``plans``: the previous operators."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if node.by_engine:
        owner = graph.node(node.input)
        above = [frames[id].limit(0) for id in inputs(owner)]
        return kept_out(owner, above, node.side)
    spark = frames[node.input].sparkSession
    return spark.createDataFrame([], from_arrow_schema(plans[node.input].sides[node.side]))


def kept_out(node: Node, frames: Sequence[DataFrame], side: str) -> DataFrame:
    """The stream ``side`` of rows that the engine removes from the inputs of a node. ``frames``: these rows, by input.

    Raises ``PipelineError`` if late rows of several inputs cannot be one stream.
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
                    f"Operator {operator!r}: the late rows of both streams cannot be one stream, because column "
                    f"{name!r} "
                    f"is {types[name.casefold()]} in one and {type} in the other. Use left_late and right_late."
                )


def _transformed(
    graph: Graph, node: TransformNode, function: Callable[..., DataFrame], frames: list[DataFrame]
) -> DataFrame:
    from pyspark.sql import DataFrame

    with at(place(graph, node.id)), with_spark():
        frame = function(*frames)
        if not isinstance(frame, DataFrame):
            raise PipelineError(f"the function returned {type(frame).__name__}, not a DataFrame. Return a DataFrame.")
        return frame
