"""DataFrames of an epoch: the pipeline's graph over the slices, with each operator as one ``mapInArrow``.

This module builds plans and runs no job. See docs/architecture.md for the job's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType

from epochal.contracts.source import PARTITION, Source
from epochal.engine.event_time import TimedFrames
from epochal.engine.job import EpochPlan, Participants
from epochal.engine.observations import observed
from epochal.errors import SchemaError
from epochal.operators.contract import OperatorPlan
from epochal.operators.distribution import Subtasks
from epochal.pipeline.graph import FeedbackNode, OperatorNode, SourceNode, StaticNode
from epochal.tasks.arrow_tasks import map_in_arrow
from epochal.tasks.fused_sink_task import FusedSink, FusedSinkTask
from epochal.tasks.operator import HANDLE, OperatorTask
from epochal.tasks.sink import SINK_RESULT
from epochal.tasks.steps import TaskAnswer

SINK_RESULT_TYPE = from_arrow_schema(SINK_RESULT)


@dataclass
class StaticTables:
    """Tables that an attempt joins with: read once, and again when their refresh is due."""

    frames: dict[str, DataFrame] = field(default_factory=dict)
    read_at: dict[str, int] = field(default_factory=dict)
    """Epoch time of the last read, by table."""

    def of(self, spark: SparkSession, nodes: Iterable[StaticNode], epoch_time: int) -> dict[str, DataFrame]:
        """Tables of an epoch. Raises ``SchemaError`` if a table's columns have changed since the first read.

        A retried epoch uses the same tables, unless a refresh has become due in the meantime.
        """
        for node in nodes:
            known = self.frames.get(node.name)
            if known is None or (node.refresh is not None and epoch_time - self.read_at[node.name] >= node.refresh):
                found = node.read(spark)
                if known is not None and _columns(known) != _columns(found):
                    raise SchemaError(
                        f"Table {node.name!r} had the columns {known.schema.simpleString()} when this attempt began, "
                        f"and has {found.schema.simpleString()} now. Restore the columns, or restart the application."
                    )
                self.frames[node.name], self.read_at[node.name] = found, epoch_time
        return self.frames


def _columns(frame: DataFrame) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in frame.schema.fields]


@dataclass
class EpochFrames:
    """Builds the frames of one epoch, and holds the observations to read after the job."""

    spark: SparkSession
    plan: EpochPlan
    participants: Participants
    statics: Mapping[str, DataFrame]
    without_rows: Callable[[str], DataFrame]
    """Empty frame of a source, by its name."""
    operators: Mapping[str, OperatorPlan]
    subtasks: Mapping[str, Subtasks]
    """By operator."""
    handles_column: Column
    time: TimedFrames
    unread: Mapping[str, frozenset[str]]
    """Unread columns, by source."""
    handles: dict[str, Observation] = field(default_factory=dict)
    rows_in: dict[str, Observation] = field(default_factory=dict)

    def source(self, node: SourceNode | FeedbackNode) -> DataFrame:
        """Rows of the epoch's slice; an empty frame if the source has no slice in this epoch."""
        source: Source = self.participants.sources[node.name]
        slice = self.plan.slices.get(node.name)
        carrying = node.id in self.time.time.partitions.carrying
        if slice is None or slice.has_no_rows:
            empty = self.without_rows(node.name)
            return empty.selectExpr("*", f"CAST(NULL AS STRING) AS {PARTITION}") if carrying else empty
        frame = source.read_some(self.spark, slice, self.unread.get(node.name, frozenset()), carrying)
        if slice.rows is not None:
            return frame
        observation = self.rows_in.setdefault(node.name, Observation(f"rows of {node.name}"))
        return frame.observe(observation, F.count(F.lit(1)).alias("rows"))

    def table(self, node: StaticNode) -> DataFrame:
        return self.statics[node.name]

    def task_rows(self, node: OperatorNode, inputs: Sequence[DataFrame], read: Collection[str | None]) -> DataFrame:
        """Result of the operator's task: rows of its outputs in ``read``, and rows with its handles.

        ``None`` in ``read`` is the main output, other names are sides.
        """
        plan = self._in_epoch(node)
        return map_in_arrow(self._distributed(plan, node, inputs), self._task(plan, node, read), plan.task_schema)

    def last_rows(self, node: OperatorNode, inputs: Sequence[DataFrame], writing: FusedSink | None) -> DataFrame:
        """Result of an operator's task fused with its only sink, or without a reader: rows of ``SINK_RESULT``."""
        plan = self._in_epoch(node)
        task = FusedSinkTask(self._task(plan, node, () if writing is None else (None,)), writing)
        return map_in_arrow(self._distributed(plan, node, inputs), task, SINK_RESULT_TYPE)

    def _in_epoch(self, node: OperatorNode) -> OperatorPlan:
        return self.operators[node.name].in_epoch(self.plan.conditions, self.plan.queries)

    def _distributed(self, plan: OperatorPlan, node: OperatorNode, inputs: Sequence[DataFrame]) -> DataFrame:
        return plan.distributed(self.time.on_time(node, inputs), self.subtasks[node.name])

    def _task(self, plan: OperatorPlan, node: OperatorNode, read: Collection[str | None]) -> OperatorTask:
        subtasks = self.subtasks[node.name]
        return OperatorTask(
            operator=node.name,
            work=plan.work,
            backend=self.participants.operators[node.name],
            epoch=self.plan.scope,
            conditions=self.plan.conditions,
            parallelism=subtasks.parallelism,
            max_parallelism=subtasks.max_parallelism,
            tables=plan.tables,
            chains={table.id: self.plan.chains[table.id] for table in plan.tables},
            key=plan.key,
            output=plan.output,
            sides=plan.sides,
            reconcile=plan.reconcile,
            silent=None not in read,
            silent_sides=frozenset(plan.sides) - {side for side in read if side is not None},
        )

    def observed(self, node: OperatorNode, frame: DataFrame) -> DataFrame:
        """``frame`` with an observation of the operator's handles."""
        observation = self.handles.setdefault(node.name, Observation(f"handles of {node.name}"))
        return frame.observe(observation, self.handles_column)

    def observed_answers(self) -> dict[str, list[TaskAnswer]]:
        """Answers by operator, after the job. Duplicate answers are kept."""
        return {
            name: [TaskAnswer.decode(bytes(handle)) for handle in observed(observation).get("handles", ())]
            for name, observation in self.handles.items()
        }

    def observed_rows_in(self) -> dict[str, int]:
        """Number of rows read from each source, after the job, as known by the source or counted by Spark."""
        known = {name: slice.rows for name, slice in self.plan.slices.items() if slice.rows is not None}
        counted = {name: int(observed(each).get("rows", 0)) for name, each in self.rows_in.items()}
        return known | counted


def handles_column() -> Column:
    """Observed column with all handles of an operator; reused in all epochs."""
    return F.expr(f"collect_list({HANDLE}) AS handles")
