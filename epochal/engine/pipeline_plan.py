"""What the engine knows of a graph before the first epoch: operators' plans, sinks' columns, what has watermarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from epochal.contracts.source import Source
from epochal.declarations.carried import carried_schema
from epochal.engine.event_time import WITHOUT_EVENT_TIME, TimePlan
from epochal.operators.contract import OperatorPlan
from epochal.operators.loops.plan import head_columns
from epochal.pipeline.analysis import Analysis
from epochal.pipeline.epoch_time import calls_epoch_time, temporary_epoch_time
from epochal.pipeline.evaluate import empty_side, evaluate
from epochal.pipeline.graph import Graph, NodeId, OperatorNode, SourceNode
from epochal.pipeline.meanings import with_definitions
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
