"""E2 on Spark: one job for the usual pipeline, one more for each operator that several consumers read.

The last stage is the union of the sinks' tasks, the handles of operators without readers, and one end row. Each row of
the result has its partition of the stage; the partition of the end row gives the number of partitions. There is no end
row if every branch is an operator's task, since the number of subtasks is known.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce

from pyspark import StorageLevel
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from epochal.contracts.configuration import Configuration
from epochal.contracts.handle import Handle
from epochal.contracts.source import Slice
from epochal.declarations.spark_errors import computation_error, without_query_log
from epochal.engine import failures
from epochal.engine.epoch_parts import Slots, job_time
from epochal.engine.event_time import WITHOUT_EVENT_TIME, TimedFrames, TimePlan, read_by_operators
from epochal.engine.frames import SINK_RESULT_TYPE, EpochFrames, StaticTables, handles_column
from epochal.engine.job import Answers, EpochPlan, EpochRunner, Participants, SinkAnswer, tail_owner
from epochal.engine.operator_subtasks import OperatorSubtasks
from epochal.engine.planner import JobShape, job_shape
from epochal.engine.session import ANSI, CODEGEN, COMPILED_AGGREGATES, INTERPRETED_ROWS, interpreted, limited
from epochal.engine.straight_sinks import StraightSink, straight_sinks
from epochal.errors import EpochalError
from epochal.operators.contract import OperatorPlan
from epochal.pipeline.column_use import unread
from epochal.pipeline.epoch_time import define_epoch_time
from epochal.pipeline.evaluate import evaluate, kept_out
from epochal.pipeline.graph import CloseNode, Graph, NodeId, OperatorNode, SideNode, SinkNode
from epochal.pipeline.statements import Statements
from epochal.snapshots.manifest import DeltaFile
from epochal.tasks import map_seconds
from epochal.tasks.arrow_tasks import map_in_arrow
from epochal.tasks.fused_sink_task import FusedSink
from epochal.tasks.operator import HANDLE
from epochal.tasks.sink import SinkTask
from epochal.tasks.steps import TaskAnswer, TaskRun, machines_of, works_of
from epochal.tasks.subtask_rows import SUBTASK

log = logging.getLogger(__name__)

OWN_PARTITION = "int(reflect('org.apache.spark.TaskContext', 'getPartitionId'))"
"""Partition of the job in which a row is computed. ``spark_partition_id()`` returns the partition within a branch of a
union, and above the union it would be one more step for all rows."""
ALL_ATTEMPTS_OBSERVED = "spark.sql.legacy.observeMetricsAggregateAllAttempts"
"""Setting of Spark 4.3 and later; earlier versions always observe all attempts."""


def session_settings(parallelism: int) -> dict[str, str]:
    """Settings on which the job's shape relies, set in every session."""
    return {
        # Aggregates use Spark's own shuffle, which needs one partition per subtask.
        "spark.sql.shuffle.partitions": str(parallelism),
        # A union must concatenate its branches: the end row's partition is the number of all other partitions.
        "spark.sql.unionOutputPartitioning": "false",
        # Observed counts and handles must not include repeated attempts of a stage.
        ALL_ATTEMPTS_OBSERVED: "false",
        **ANSI,
    }


@dataclass
class SparkRunner(EpochRunner):
    """Runs the epochs of one program. ``shadow``: without sinks. It does not use Spark before it is activated."""

    spark: SparkSession
    graph: Graph
    participants: Participants
    operators: Mapping[str, OperatorPlan]
    configuration: Configuration
    shadow: bool = False
    time: TimePlan = WITHOUT_EVENT_TIME
    calls_epoch_time: bool = False
    _statics: StaticTables = field(default_factory=StaticTables)
    _without_rows: dict[str, DataFrame] = field(default_factory=dict)
    _slots: Slots = field(default_factory=Slots)

    def activate(self, before: EpochRunner | None = None) -> None:
        if isinstance(before, SparkRunner):
            self.subtasks.take_over(before.subtasks)
        for name, value in session_settings(self.configuration.parallelism).items():
            self.spark.conf.set(name, value)

    def declaring(self, participants: Participants) -> SparkRunner:
        tables = {table.id: table.without_definition() for table in participants.tables}
        operators = {
            name: replace(plan, tables=tuple(tables[table.id] for table in plan.tables))
            for name, plan in self.operators.items()
        }
        return replace(self, participants=participants, operators=operators)

    @cached_property
    def subtasks(self) -> OperatorSubtasks:
        return OperatorSubtasks(self.spark, self.graph, self.participants, self.operators, self.configuration)

    @cached_property
    def run_nodes(self) -> frozenset[NodeId]:
        """Nodes whose rows a job computes."""
        ends = OperatorNode | CloseNode if self.shadow else OperatorNode | CloseNode | SinkNode
        apart = {node.id for node in self.graph.sinks if node.rejects is not None}
        return self.graph.ancestors(
            node.id for node in self.graph.nodes if isinstance(node, ends) and node.id not in apart
        )

    @cached_property
    def statements(self) -> Statements:
        return Statements(self.graph, self.evaluated)

    @cached_property
    def read_apart(self) -> frozenset[NodeId]:
        """Nodes whose rejected or late rows have a reader."""
        return frozenset(node.input for node in self.graph.nodes if isinstance(node, SideNode) and node.by_engine)

    @cached_property
    def by_operators(self) -> frozenset[NodeId]:
        return read_by_operators(self.graph, self.run_nodes)

    @cached_property
    def unread(self) -> dict[str, frozenset[str]]:
        """Unread columns, by source."""
        sources = self.participants.sources
        return unread(
            self.graph, {node.name: sources[node.name].schema(self.spark).names for node in self.graph.sources}
        )

    @cached_property
    def shape(self) -> JobShape:
        return job_shape(self.graph, sinks=not self.shadow)

    @cached_property
    def straight(self) -> dict[NodeId, StraightSink]:
        """Sinks that are fused with an operator into one Python task, by the operator."""
        if self.shadow:
            return {}
        timezone = self.spark.conf.get("spark.sql.session.timeZone")
        return straight_sinks(self.graph, self.shape, self.operators, timezone)

    @cached_property
    def evaluated(self) -> frozenset[NodeId]:
        """Nodes that have a frame: those of :attr:`run_nodes` without what a fused task computes."""
        fused = {id for each in self.straight.values() for id in (*each.verbs, each.sink.id)}
        return self.run_nodes - fused

    @cached_property
    def writers(self) -> frozenset[str]:
        """Names of the operators in ``straight``."""
        return frozenset(node.name for node in self.graph.operators if node.id in self.straight)

    @cached_property
    def is_wide(self) -> bool:
        """True if every operator is wide, so that small epochs run without generated code. The setting applies to a
        whole job; a setting in the application's configuration takes precedence.
        """
        widths = [plan.aggregated_columns for plan in self.operators.values()]
        return bool(widths) and min(widths) > COMPILED_AGGREGATES and CODEGEN not in self.configuration.spark

    @cached_property
    def handles_column(self) -> Column:
        return handles_column()

    @cached_property
    def end_row(self) -> DataFrame:
        return self.spark.range(0, 1, 1, 1).selectExpr(
            "CAST(NULL AS STRING) AS sink", f"{OWN_PARTITION} AS partition", "CAST(NULL AS BINARY) AS handle"
        )

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        epoch = _EpochJob(self, plan)
        settings = interpreted(self.spark) if self.is_wide and self._is_small(plan.slices) else nullcontext()
        with limited(self.spark, plan.scope.key, timeout_seconds), settings:
            answers = epoch.run()
        self.subtasks.ran(answers)
        return answers

    def _is_small(self, slices: Mapping[str, Slice]) -> bool:
        rows = [self.participants.sources[name].most_rows(slice) for name, slice in slices.items()]
        return sum(INTERPRETED_ROWS + 1 if each is None else each for each in rows) <= INTERPRETED_ROWS

    def repeated(self, runs: Sequence[TaskRun | None]) -> bool:
        """False if these are the only runs of their tasks: Spark has not repeated a task or a stage."""
        if any(run is None or run.attempt for run in runs) or self.spark.conf.get("spark.speculation", "") == "true":
            return True
        if is_remote():
            return True
        stages = map(self.spark.sparkContext.statusTracker().getStageInfo, {run.stage for run in runs if run})
        return any(stage is None or stage.currentAttemptId for stage in stages)

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return self.participants.operators[handle.owner].deltas(handle)

    def without_rows(self, source: str) -> DataFrame:
        """Empty frame with the columns of a source, created once per attempt.

        It has one partition, so that a sink without other input still answers. It runs no Python task, unlike a frame
        from an empty list. The expressions hide the nulls from the optimizer, which would otherwise remove the
        partition behind a filter over them.
        """
        if source not in self._without_rows:
            frame = self.spark.range(0, 0, 1, 1)
            count = F.col("id").cast("int")
            columns = [
                F.try_element_at(F.array_repeat(F.lit(None).cast(each.dataType), count), F.lit(1)).alias(each.name)
                for each in self.participants.sources[source].schema(self.spark)
            ]
            self._without_rows[source] = frame.select(*columns)
        return self._without_rows[source]


class _EpochJob:
    """The jobs of one epoch."""

    def __init__(self, runner: SparkRunner, plan: EpochPlan) -> None:
        self._planned_since, self._planning = time.monotonic(), 0.0
        self._runner = runner
        self._plan = plan
        self._frames = EpochFrames(
            runner.spark,
            plan,
            runner.participants,
            runner._statics.of(runner.spark, runner.graph.static_tables, plan.conditions.epoch_time),
            runner.without_rows,
            runner.operators,
            runner.subtasks.of(plan),
            runner.handles_column,
            TimedFrames(
                runner.time,
                plan.conditions,
                runner.participants.sources,
                plan.slices,
                runner.run_nodes,
                runner.read_apart,
                runner.by_operators,
            ),
            runner.unread,
        )
        self._shape = runner.shape
        self._materialised: dict[str, list[TaskAnswer]] = {}
        self._persisted: list[DataFrame] = []
        self._drains: list[DataFrame] = []
        self._written: dict[NodeId, DataFrame] = {}
        self._task_rows: dict[NodeId, DataFrame] = {}
        self._has_end_row = True

    def run(self) -> Answers:
        with without_query_log():
            return self._run()

    def _run(self) -> Answers:
        map_seconds.take()  # seconds of an aborted epoch
        frames: dict[NodeId, DataFrame] = {}
        if self._runner.calls_epoch_time:
            define_epoch_time(self._runner.spark, self._plan.conditions.epoch_time)
        try:
            evaluate(
                self._runner.graph,
                source=self._frames.source,
                table=self._frames.table,
                operator=self._operator,
                event_time=self._frames.time.accepted,
                side=self._side,
                loop=self._frames.source,
                frames=frames,
                carrying=self._runner.time.partitions.carrying,
                statements=self._runner.statements,
                needed=self._runner.evaluated,
            )
            rows = self._collected(self._last_stage(frames))
            return self._answers(rows)
        except Exception as error:
            named = self._located(error, frames)
            if named is not None:
                raise named from error
            raise
        finally:
            for frame in self._persisted:
                frame.unpersist()

    def _collected(self, frame: DataFrame) -> list[Row]:
        """Run a job. The time before it counts as planning."""
        self._planning += time.monotonic() - self._planned_since
        rows = frame.collect()
        self._planned_since = time.monotonic()
        return rows

    def _located(self, error: Exception, frames: dict[NodeId, DataFrame]) -> EpochalError | None:
        """Location of a failure that Spark's error does not name, found by running parts of the epoch again."""
        of_sql = isinstance(error, PySparkException) and not isinstance(error, PythonException)
        if of_sql and computation_error(str(error)) is not None:
            return failures.located(self._runner.graph, frames, self._runner.operators)
        return None

    def _operator(self, node: OperatorNode, inputs: list[DataFrame]) -> DataFrame:
        plan = self._runner.operators[node.name]
        if node.id in self._shape.drained:
            self._drains.append(self._frames.last_rows(node, inputs, None))
            return self._drains[-1]
        if node.id in self._runner.straight:
            straight = self._runner.straight[node.id]
            writing = FusedSink(self._sink_task(straight.sink.name), straight.columns, straight.schema)
            self._written[straight.sink.id] = self._frames.last_rows(node, inputs, writing)
            return self._written[straight.sink.id]
        frame = self._frames.task_rows(node, inputs, self._read(node))
        if node.id in self._shape.shared:
            frame = self._materialise(node, frame)
        else:
            frame = self._frames.observed(node, frame)
        self._task_rows[node.id] = frame
        return plan.output_rows(frame)

    def _read(self, node: OperatorNode) -> set[str | None]:
        """Outputs of an operator that have readers: names of sides; ``None`` is the main output."""
        readers: dict[NodeId, str | None] = {side.id: side.side for side in self._runner.graph.sides(node.id)}
        return {side for id, side in {node.id: None, **readers}.items() if id not in self._shape.unread}

    def _side(self, node: SideNode) -> DataFrame:
        operator = self._runner.graph.node(node.input)
        if node.by_engine:
            return kept_out(operator, self._frames.time.sides[node.input], node.side)
        assert isinstance(operator, OperatorNode)  # only operators have sides of their own
        return self._runner.operators[operator.name].side_rows(self._task_rows[operator.id], node.side)

    def _materialise(self, node: OperatorNode, frame: DataFrame) -> DataFrame:
        """Run a shared operator once, now. Its handles are the job's result; its rows are persisted for the readers."""
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._persisted.append(kept)
        rows = self._collected(kept.where(f"{HANDLE} IS NOT NULL").select(SUBTASK, HANDLE))
        self._materialised[node.name] = [TaskAnswer.decode(bytes(row[HANDLE])) for row in rows]
        return kept

    def _last_stage(self, frames: dict[NodeId, DataFrame]) -> DataFrame:
        apart = [*self._tail_branches(frames), *self._sink_branches(frames)]
        with_operators = [*self._written.values(), *self._drains]
        ends = [self._runner.end_row] if apart or not with_operators else []
        self._has_end_row = bool(ends)
        return reduce(DataFrame.unionAll, [*apart, *with_operators, *ends])

    def _sink_branches(self, frames: dict[NodeId, DataFrame]) -> Iterator[DataFrame]:
        if self._runner.shadow:
            return
        for node in self._runner.graph.sinks:
            if node.id not in self._written and node.rejects is None:  # dead letters come from the task of their sink
                yield map_in_arrow(frames[node.input], self._sink_task(node.name), SINK_RESULT_TYPE)

    def _sink_task(self, sink: str) -> SinkTask:
        participants = self._runner.participants
        return SinkTask(sink, participants.sinks[sink], self._plan.scope, participants.dead_letters.get(sink))

    def _tail_branches(self, frames: dict[NodeId, DataFrame]) -> Iterator[DataFrame]:
        for node in self._runner.graph.tails:
            task = SinkTask(tail_owner(node.name), self._runner.participants.loops[node.name], self._plan.scope)
            yield map_in_arrow(frames[node.id], task, SINK_RESULT_TYPE)

    def _answers(self, rows: list[Row]) -> Answers:
        in_order = sorted(rows, key=lambda row: row["partition"])
        answered = in_order[:-1] if self._has_end_row else in_order
        decoded = [(row, TaskAnswer.decode(bytes(row["handle"]))) for row in answered]
        sinks = [(row["partition"], answer) for row, answer in decoded if row["sink"] is not None]
        drained = [(row["partition"], answer) for row, answer in decoded if row["sink"] is None]
        operators = {**self._frames.observed_answers(), **self._materialised}
        for _, answer in drained:
            operators.setdefault(answer.handle.owner, []).append(answer)
        rows_read = self._frames.observed_rows_in()
        answers = [*(answer for found in operators.values() for answer in found), *(answer for _, answer in sinks)]
        return Answers(
            operators={name: [answer.handle for answer in found] for name, found in operators.items()},
            sinks=[SinkAnswer(partition, answer.handle, answer.reason) for partition, answer in sinks],
            drained_partitions=frozenset(
                partition for partition, answer in drained if answer.handle.owner not in self._runner.writers
            ),
            # Without an end row every partition is a subtask of an operator, with or without a fused sink.
            partitions=range(in_order[-1]["partition"])
            if self._has_end_row
            else {row["partition"] for row in answered},
            rows_in=sum(rows_read.values()),
            rows_read=rows_read,
            time=self._frames.time.observed(),
            task_seconds=[answer.seconds for answer in answers],
            work=works_of(answer for found in operators.values() for answer in found),
            job=job_time(
                self._planning,
                operators,
                [answer for _, answer in sinks],
                self._runner.participants.sinks,
                map_seconds.take(),
                self._runner._slots.of(self._runner.spark, self._runner.configuration.parallelism),
            ),
            machines=machines_of(answers),
            unplaced=self._runner.subtasks.unplaced,
            moved_stragglers=self._runner.subtasks.moved_stragglers,
            read_bytes=sum((Counter(answer.read_bytes) for answer in answers), Counter()),
            repeated=partial(self._runner.repeated, [answer.ran for answer in answers]),
        )
