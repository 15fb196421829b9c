"""An epoch's DataFrames: the pipeline's graph over the slices, with every operator as one ``mapInArrow``.

Only plans are made here; nothing runs. See docs/architecture.md for the job's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType

from epochal.contracts.configuration import Configuration
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
    """The tables that one attempt joins with: read once, and again when their refresh is due."""

    frames: dict[str, DataFrame] = field(default_factory=dict)
    read_at: dict[str, int] = field(default_factory=dict)
    """Epoch time, by the table's name."""

    def of(self, spark: SparkSession, nodes: Iterable[StaticNode], epoch_time: int) -> dict[str, DataFrame]:
        """The tables of an epoch. Raises ``SchemaError`` for one whose columns have changed since the first reading.

        An epoch that is retried has the same ones, unless its refresh has become due in the meantime.
        """
        for node in nodes:
            known = self.frames.get(node.name)
            if known is None or (node.refresh is not None and epoch_time - self.read_at[node.name] >= node.refresh):
                found = node.read(spark)
                if known is not None and _columns(known) != _columns(found):
                    raise SchemaError(
                        f"Table {node.name!r} had the columns {known.schema.simpleString()} when this attempt began, "
                        f"and has {found.schema.simpleString()} now. Put the columns back, or start again."
                    )
                self.frames[node.name], self.read_at[node.name] = found, epoch_time
        return self.frames


def _columns(frame: DataFrame) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in frame.schema.fields]


@dataclass
class EpochFrames:
    """Makes the frames of one epoch; remembers what has to be read back from Spark afterwards."""

    spark: SparkSession
    plan: EpochPlan
    participants: Participants
    configuration: Configuration
    statics: Mapping[str, DataFrame]
    without_rows: Callable[[str], DataFrame]
    """By the name of a source: its columns."""
    operators: Mapping[str, OperatorPlan]
    subtasks: Subtasks
    handles_column: Column
    time: TimedFrames
    unread: Mapping[str, frozenset[str]]
    """By the name of a source: the columns of its that nothing reads."""
    handles: dict[str, Observation] = field(default_factory=dict)
    rows_in: dict[str, Observation] = field(default_factory=dict)

    def source(self, node: SourceNode | FeedbackNode) -> DataFrame:
        """The rows of the epoch's slice; no rows where the source has none in this epoch."""
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
        """The operator's task over its inputs: rows of the sides that are ``read``, and those that carry its handles.

        Its output itself is ``None`` among the sides.
        """
        plan = self._in_epoch(node)
        return map_in_arrow(self._distributed(plan, node, inputs), self._task(plan, node, read), plan.task_schema)

    def last_rows(self, node: OperatorNode, inputs: Sequence[DataFrame], writing: FusedSink | None) -> DataFrame:
        """The task of an operator whose output goes to one sink as it is, or to nobody, and that of the sink: rows of
        ``SINK_RESULT``."""
        plan = self._in_epoch(node)
        task = FusedSinkTask(self._task(plan, node, () if writing is None else (None,)), writing)
        return map_in_arrow(self._distributed(plan, node, inputs), task, SINK_RESULT_TYPE)

    def _in_epoch(self, node: OperatorNode) -> OperatorPlan:
        return self.operators[node.name].in_epoch(self.plan.conditions, self.plan.queries)

    def _distributed(self, plan: OperatorPlan, node: OperatorNode, inputs: Sequence[DataFrame]) -> DataFrame:
        return plan.distributed(self.time.on_time(node, inputs), self.subtasks)

    def _task(self, plan: OperatorPlan, node: OperatorNode, read: Collection[str | None]) -> OperatorTask:
        configuration = self.configuration
        return OperatorTask(
            operator=node.name,
            work=plan.work,
            backend=self.participants.operators[node.name],
            epoch=self.plan.scope,
            conditions=self.plan.conditions,
            parallelism=configuration.parallelism,
            max_parallelism=configuration.max_parallelism,
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
        """``frame`` with the operator's handles on their way to the driver."""
        observation = self.handles.setdefault(node.name, Observation(f"handles of {node.name}"))
        return frame.observe(observation, self.handles_column)

    def observed_answers(self) -> dict[str, list[TaskAnswer]]:
        """After the job: what came back; an answer that came twice is there twice."""
        return {
            name: [TaskAnswer.decode(bytes(handle)) for handle in observed(observation).get("handles", ())]
            for name, observation in self.handles.items()
        }

    def observed_rows_in(self) -> int:
        """After the job: rows read, as the sources knew before or Spark counted."""
        known = sum(slice.rows or 0 for slice in self.plan.slices.values())
        return known + sum(int(observed(observation).get("rows", 0)) for observation in self.rows_in.values())


def handles_column() -> Column:
    """What is observed of an operator's rows: all handles. For any number of epochs."""
    return F.expr(f"collect_list({HANDLE}) AS handles")
