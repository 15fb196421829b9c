"""What the engine knows of each operator before the first epoch: work, tables, columns. Found once per attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from epochal.contracts.source import Source
from epochal.engine.tasks.aggregate import AggregateWork
from epochal.engine.tasks.operator import CONTROL, Work
from epochal.engine.tasks.process import ProcessWork
from epochal.engine.tasks.process_batch import ProcessBatchWork
from epochal.pipeline.aggregation import AggregationPlan, plan_aggregation
from epochal.pipeline.carried import carried_schema
from epochal.pipeline.evaluate import evaluate
from epochal.pipeline.expressions import column, to_column
from epochal.pipeline.graph import AggregateNode, Graph, OperatorNode, ProcessBatchNode, ProcessNode, SourceNode
from epochal.pipeline.keys import key_columns
from epochal.pipeline.operators import declared_output, state_tables
from epochal.state.table import Column, StateTable
from epochal.state.types import nullable_within


@dataclass(frozen=True)
class OperatorPlan:
    """One operator over an input of known columns. ``task_output`` is what its task yields, without control columns."""

    work: Work
    key: tuple[Column, ...]
    tables: tuple[StateTable, ...]
    task_output: pa.Schema
    aggregation: AggregationPlan | None = None

    @cached_property
    def task_schema(self) -> StructType:
        """What the task yields, control columns included, as Spark spells it."""
        return from_arrow_schema(pa.schema([*self.task_output, *CONTROL]))

    @cached_property
    def partials(self) -> list[SparkColumn]:
        """What Spark aggregates over the slice; made once, as every column costs calls into the JVM."""
        return self.aggregation.partial_columns() if self.aggregation else []

    @cached_property
    def _finishing(self) -> tuple[list[SparkColumn], ...]:
        if self.aggregation:
            return self.aggregation.finishing()
        return ([to_column(column(name)) for name in self.task_output.names],)

    def finished(self, rows: DataFrame) -> DataFrame:
        """The operator's output from its task's rows; control columns are left out."""
        for columns in self._finishing:
            rows = rows.select(*columns)
        return rows


def operator_plan(node: OperatorNode, frame: DataFrame) -> OperatorPlan:
    """Plan an operator over its input. Raises ``PipelineError``, ``SchemaError``."""
    key = key_columns(node, frame.schema)
    names = tuple(frame.columns)
    match node:
        case AggregateNode():
            aggregation = plan_aggregation(node, frame)
            table = aggregation.table
            columns = (*table.key, *table.value, *aggregation.computed)
            output = pa.schema([column.to_arrow() for column in columns])
            return OperatorPlan(AggregateWork(aggregation), key, (table,), output, aggregation)
        case ProcessNode():
            work: Work = ProcessWork(node.process, names)
        case ProcessBatchNode():
            work = ProcessBatchWork(node.function, names)
    declared = carried_schema(declared_output(node))
    output = pa.schema([field.with_type(nullable_within(field.type)) for field in declared])
    return OperatorPlan(work, key, state_tables(node, frame), output)


@dataclass(frozen=True)
class PipelinePlan:
    """All operators' plans by name, and the columns that each sink will get."""

    operators: dict[str, OperatorPlan]
    sinks: dict[str, pa.Schema]

    @property
    def tables(self) -> tuple[StateTable, ...]:
        return tuple(table for plan in self.operators.values() for table in plan.tables)


def plan_pipeline(graph: Graph, spark: SparkSession, sources: Mapping[str, Source]) -> PipelinePlan:
    """Plan a graph by evaluating it over empty inputs. Raises ``PipelineError``, ``SchemaError``, ``SourceError``."""
    plans: dict[str, OperatorPlan] = {}

    def empty(node: SourceNode) -> DataFrame:
        return spark.createDataFrame([], sources[node.name].schema(spark))

    def planned(node: OperatorNode, frame: DataFrame) -> DataFrame:
        plan = plans[node.name] = operator_plan(node, frame)
        return plan.finished(spark.createDataFrame([], from_arrow_schema(plan.task_output)))

    frames = evaluate(graph, source=empty, table=lambda node: node.read(spark), operator=planned)
    sinks = {node.name: carried_schema(frames[node.input].schema) for node in graph.sinks}
    return PipelinePlan(plans, sinks)
