"""An epoch's DataFrames: the pipeline's graph over the slices, with every operator as one ``mapInArrow``.

Only plans are made here; nothing runs. See docs/architecture.md for the job's shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from epochal.contracts.handle import Handle
from epochal.contracts.source import Source
from epochal.engine.arrow_tasks import map_in_arrow
from epochal.engine.job import EpochPlan, Participants
from epochal.engine.marks import rides_spark_shuffle, with_control, with_marks
from epochal.engine.operators import OperatorPlan
from epochal.engine.settings import Configuration
from epochal.engine.tasks.calls import MARK, SUBTASK
from epochal.engine.tasks.operator import OperatorTask
from epochal.pipeline.graph import AggregateNode, OperatorNode, ProcessBatchNode, ProcessNode, SourceNode, StaticNode
from epochal.state.type_names import quoted

HANDLE = "_handle"


@dataclass
class EpochFrames:
    """Makes the frames of one epoch; remembers what has to be read back from Spark afterwards."""

    spark: SparkSession
    plan: EpochPlan
    participants: Participants
    configuration: Configuration
    statics: Mapping[str, DataFrame]
    operators: Mapping[str, OperatorPlan]
    marks: DataFrame
    handle_columns: Sequence[Column]
    handles: dict[str, Observation] = field(default_factory=dict)
    rows_in: dict[str, Observation] = field(default_factory=dict)

    def source(self, node: SourceNode) -> DataFrame:
        """The rows of the epoch's slice; no rows where the source has none in this epoch."""
        source: Source = self.participants.sources[node.name]
        slice = self.plan.slices.get(node.name)
        if slice is None:
            return self.spark.createDataFrame([], source.schema(self.spark))
        frame = source.read(self.spark, slice)
        if slice.rows is not None:
            return frame
        observation = self.rows_in.setdefault(node.name, Observation(f"rows of {node.name}"))
        return frame.observe(observation, F.count(F.lit(1)).alias("rows"))

    def table(self, node: StaticNode) -> DataFrame:
        return self.statics[node.name]

    def task_rows(self, node: OperatorNode, frame: DataFrame, silent: bool) -> DataFrame:
        """The operator's task over its input: output rows (none when ``silent``), and those that carry its handles."""
        plan = self.operators[node.name]
        configuration = self.configuration
        task = OperatorTask(
            operator=node.name,
            work=plan.work,
            backend=self.participants.operators[node.name],
            epoch=self.plan.scope,
            parallelism=configuration.parallelism,
            max_parallelism=configuration.max_parallelism,
            tables=plan.tables,
            chains={table.id: self.plan.chains[table.id] for table in plan.tables},
            key=plan.key,
            output=plan.task_output,
            silent=silent,
        )
        return map_in_arrow(self._shuffled(node, frame, plan), task, plan.task_schema)

    def observed(self, node: OperatorNode, frame: DataFrame) -> DataFrame:
        """``frame`` with the operator's handles on their way to the driver: by subtask the handle, and their number."""
        observation = self.handles.setdefault(node.name, Observation(f"handles of {node.name}"))
        return frame.observe(observation, *self.handle_columns)

    def observed_handles(self) -> dict[str, list[Handle]]:
        """After the job: what came back; a handle that came twice is there twice."""
        found: dict[str, list[Handle]] = {}
        for name, observation in self.handles.items():
            values = observation.get
            found[name] = [
                Handle.decode(bytes(values[f"handle_{subtask}"]))
                for subtask in range(self.configuration.parallelism)
                for _ in range(values[f"count_{subtask}"])
            ]
        return found

    def observed_rows_in(self) -> int:
        """After the job: rows read, as the sources knew before or Spark counted."""
        known = sum(slice.rows or 0 for slice in self.plan.slices.values())
        return known + sum(int(observation.get["rows"]) for observation in self.rows_in.values())

    def _shuffled(self, node: OperatorNode, frame: DataFrame, plan: OperatorPlan) -> DataFrame:
        """The input at its subtasks, with marks and control columns."""
        parallelism, maximum = self.configuration.parallelism, self.configuration.max_parallelism
        match node:
            case AggregateNode() if rides_spark_shuffle(parallelism, maximum):
                grouped = with_marks(frame, self.marks).groupBy(*map(quoted, node.keys), MARK).agg(*plan.partials)
                return with_control(grouped, node.keys, parallelism, maximum)
            case AggregateNode():
                grouped = with_marks(frame.groupBy(*map(quoted, node.keys)).agg(*plan.partials), self.marks)
                return self._placed(with_control(grouped, node.keys, parallelism, maximum))
            case ProcessBatchNode():
                return self._placed(with_control(with_marks(frame, self.marks), node.keys, parallelism, maximum))
            case ProcessNode():
                controlled = with_control(with_marks(frame, self.marks), node.keys, parallelism, maximum)
                marks_first = F.expr(MARK).desc_nulls_last()
                columns = map(quoted, (*node.keys, *node.process.order_columns()))
                return self._placed(controlled).sortWithinPartitions(SUBTASK, marks_first, *columns)

    def _placed(self, frame: DataFrame) -> DataFrame:
        return frame.repartitionById(self.configuration.parallelism, F.col(SUBTASK))


def handle_columns(parallelism: int) -> list[Column]:
    """What is observed of an operator's rows: each subtask's handle, and how many it gave. For any number of epochs."""
    columns = []
    for subtask in range(parallelism):
        handle = f"IF({SUBTASK} = {subtask}, {HANDLE}, NULL)"
        columns += [f"max({handle}) AS handle_{subtask}", f"count({handle}) AS count_{subtask}"]
    return [F.expr(column) for column in columns]


def output_rows(plan: OperatorPlan, frame: DataFrame) -> DataFrame:
    """An operator's output: its task's rows without those that carry handles, finished."""
    return plan.finished(frame.where(f"{HANDLE} IS NULL"))
