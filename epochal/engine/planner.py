"""What the engine knows of a graph before the first epoch: operators' plans, sinks' columns, what has watermarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from epochal.contracts.source import Source
from epochal.declarations.schemas import carried_schema
from epochal.engine.event_time import WITHOUT_EVENT_TIME, TimePlan
from epochal.operators.contract import OperatorPlan
from epochal.operators.loops.plan import head_columns
from epochal.pipeline.analysis import Analysis
from epochal.pipeline.epoch_time import calls_epoch_time, temporary_epoch_time
from epochal.pipeline.evaluate import empty_side, evaluate
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    Graph,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    TransformNode,
)
from epochal.pipeline.state_definitions import with_definitions
from epochal.state.table import StateTable


@dataclass(frozen=True)
class PipelinePlan:
    """All operators' plans by name, and the columns that each sink will get."""

    operators: dict[str, OperatorPlan]
    sinks: dict[str, pa.Schema]
    time: TimePlan = WITHOUT_EVENT_TIME
    """The places that have watermarks."""
    calls_epoch_time: bool = False
    """Whether ``epoch_time()`` has to be defined before an epoch's frames are made."""

    defined: tuple[StateTable, ...] | None = None
    """All state tables with their definitions; ``None`` where the operators were planned without a graph's frames."""

    @classmethod
    def of(cls, analysis: Analysis, sources: Mapping[str, Source]) -> PipelinePlan:
        """The plan of a graph that has just been analysed, which need not be evaluated again."""
        graph = analysis.graph
        plans = {node.name: analysis.plans[node.id] for node in graph.operators}
        return cls(plans, analysis.sinks, TimePlan.of(graph, sources), analysis.calls_epoch_time, analysis.tables)

    @property
    def tables(self) -> tuple[StateTable, ...]:
        if self.defined is not None:
            return self.defined
        return tuple(table for plan in self.operators.values() for table in plan.tables)


def plan_pipeline(graph: Graph, spark: SparkSession, sources: Mapping[str, Source]) -> PipelinePlan:
    """Plan a graph by evaluating it over empty inputs. Raises ``PipelineError``, ``SchemaError``, ``SourceError``."""
    plans: dict[NodeId, OperatorPlan] = {}
    frames: dict[NodeId, DataFrame] = {}

    def empty(node: SourceNode) -> DataFrame:
        return spark.createDataFrame([], sources[node.name].schema(spark))

    def planned(node: OperatorNode, inputs: list[DataFrame]) -> DataFrame:
        plan = plans[node.id] = node.operator.plan(inputs)
        return plan.finished(spark.createDataFrame([], from_arrow_schema(plan.output)))

    def evaluated() -> None:
        evaluate(
            graph,
            source=empty,
            table=lambda node: node.read(spark),
            operator=planned,
            event_time=lambda node, frame: frame,
            side=lambda node: empty_side(graph, node, frames, plans),
            loop=lambda node: spark.createDataFrame([], head_columns(node.feedback)),
            frames=frames,
        )

    with temporary_epoch_time(spark):
        calls = calls_epoch_time(spark, evaluated)
    sinks = {node.name: carried_schema(frames[node.input].schema) for node in graph.sinks}
    return PipelinePlan(
        {node.name: plans[node.id] for node in graph.operators},
        sinks,
        TimePlan.of(graph, sources),
        calls,
        with_definitions(graph, frames, plans),
    )


@dataclass(frozen=True)
class JobShape:
    """``shared`` operators are read more than once per epoch: each is materialised first, so that it runs once.

    Its sides are read as its output is: one task gives them all. ``drained`` operators lead to no sink and to no other
    operator: the job reads them for their handles alone. ``unread``: the operators whose output, and the readers of
    sides whose rows, nobody needs. ``written``: by operator the sink that alone reads it, with nothing between.
    """

    shared: frozenset[NodeId]
    drained: tuple[NodeId, ...]
    unread: frozenset[NodeId]
    written: Mapping[NodeId, SinkNode]


def job_shape(graph: Graph, sinks: bool) -> JobShape:
    """``sinks`` False: a shadow execution, whose sinks are left out."""
    uses = _uses(graph, sinks)
    runs = {
        node.id: uses[node.id] + sum(uses[side.id] for side in graph.sides(node.id) if not side.by_engine)
        for node in graph.operators
    }
    return JobShape(
        shared=frozenset(id for id, times in runs.items() if times > 1),
        drained=tuple(id for id, times in runs.items() if times == 0),
        unread=frozenset(
            node.id for node in graph.nodes if isinstance(node, (OperatorNode, SideNode)) and uses[node.id] == 0
        ),
        written={node.input: node for node in graph.sinks if sinks and runs.get(node.input) == 1},
    )


def _uses(graph: Graph, sinks: bool) -> dict[NodeId, int]:
    """How often each node's rows are computed in one job, were nothing materialised: one for each path to a reader."""
    uses: dict[NodeId, int] = {}
    for node in reversed(graph.nodes):
        total = 0
        for consumer in graph.consumers(node.id):
            match graph.node(consumer):
                case SinkNode():
                    total += 1 if sinks else 0
                case CloseNode():
                    total += 1
                case TransformNode():
                    total += uses[consumer]
                case EventTimeNode():
                    total += uses[consumer] + _kept_out(graph, consumer, uses)
                case OperatorNode():
                    # A shared operator is materialised, a drained one is read once: either way it reads its input once.
                    total += 1 + _kept_out(graph, consumer, uses)
                case SideNode():
                    pass  # of the operator's task, or of what it reads: not of its output
        uses[node.id] = total
    return uses


def _kept_out(graph: Graph, id: NodeId, uses: dict[NodeId, int]) -> int:
    """How often what is kept out of a node's input is read: each time the input is computed for it."""
    return sum(uses[side.id] for side in graph.sides(id) if side.by_engine)
