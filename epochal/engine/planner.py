"""Plan of a graph: operators' plans and sinks' columns, determined before the first epoch, and the shape of its
jobs."""

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
    """Plans of all operators by name, and the columns of each sink."""

    operators: dict[str, OperatorPlan]
    sinks: dict[str, pa.Schema]
    time: TimePlan = WITHOUT_EVENT_TIME
    """Event-time declarations and watermarks."""
    calls_epoch_time: bool = False
    """True if ``epoch_time()`` must be defined before an epoch's frames are built."""

    defined: tuple[StateTable, ...] | None = None
    """All state tables with their definitions; ``None`` if the operators were planned without a graph's frames."""

    @classmethod
    def of(cls, analysis: Analysis, sources: Mapping[str, Source]) -> PipelinePlan:
        """Plan from an analysis, without evaluating the graph again."""
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
    sinks = {node.name: carried_schema(frames[node.id].schema) for node in graph.sinks}
    return PipelinePlan(
        {node.name: plans[node.id] for node in graph.operators},
        sinks,
        TimePlan.of(graph, sources),
        calls,
        with_definitions(graph, frames, plans),
    )


@dataclass(frozen=True)
class JobShape:
    """Shape of an epoch's jobs. ``shared``: operators with several readers, which are materialised so that they run
    once.

    Sides count as output, since one task produces them all. ``drained``: operators that lead to no sink and to no other
    operator; the job reads only their handles. ``read_once``: operators whose output has one path to a sink or an
    operator. ``unread``: operators whose output, and side nodes whose rows, have no reader.
    """

    shared: frozenset[NodeId]
    drained: tuple[NodeId, ...]
    read_once: frozenset[NodeId]
    unread: frozenset[NodeId]


def job_shape(graph: Graph, sinks: bool) -> JobShape:
    """The shape of a graph's jobs. ``sinks``: false for a shadow execution, which has none."""
    uses = _uses(graph, sinks)
    runs = {
        node.id: uses[node.id] + sum(uses[side.id] for side in graph.sides(node.id) if not side.by_engine)
        for node in graph.operators
    }
    return JobShape(
        shared=frozenset(id for id, times in runs.items() if times > 1),
        drained=tuple(id for id, times in runs.items() if times == 0),
        read_once=frozenset(id for id, times in runs.items() if times == 1),
        unread=frozenset(
            node.id for node in graph.nodes if isinstance(node, (OperatorNode, SideNode)) and uses[node.id] == 0
        ),
    )


def _uses(graph: Graph, sinks: bool) -> dict[NodeId, int]:
    """How often a job would compute each node's rows without materialisation: once for each path to a reader."""
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
                    # A shared operator is materialised, and a drained one is read once: both read their input once.
                    total += 1 + _kept_out(graph, consumer, uses)
                case SideNode():
                    pass  # read from the operator's task or its input, not from its output
        uses[node.id] = total
    return uses


def _kept_out(graph: Graph, id: NodeId, uses: dict[NodeId, int]) -> int:
    """How often rejected or late rows of a node's input are read; each read computes the input."""
    return sum(uses[side.id] for side in graph.sides(id) if side.by_engine)
