"""The real engine without Spark: this process runs the tasks of epochs, in milliseconds instead of seconds.

Store, state backends, sinks and tasks are real. Spark is replaced: this module reads, shuffles and sorts the rows and
passes them to the tasks. :mod:`tests.kit.local_engine.attempt` runs epochs on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.handle import Handle
from epochal.contracts.source import Slice, Source
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.reconcile import Reconcile
from epochal.declarations.sides import REJECTED
from epochal.declarations.state import declared_states
from epochal.engine.event_time import WITHOUT_EVENT_TIME, TimePlan
from epochal.engine.job import Answers, EpochPlan, EpochRunner, Participants, SinkAnswer, tail_owner
from epochal.engine.planner import PipelinePlan
from epochal.engine.program import Program
from epochal.operators.contract import Operator
from epochal.operators.entries.plan import EntrySource
from epochal.operators.loops.plan import LoopHead
from epochal.operators.process.stored_timers import timer_tables
from epochal.operators.process.work import ProcessWork
from epochal.pipeline.graph import Graph
from epochal.snapshots.manifest import DeltaFile
from epochal.state.table import Column, StateTable
from epochal.state.watermarks import WHOLE
from epochal.tasks.operator import HANDLE, OperatorTask, Work
from epochal.tasks.sink import SinkTask
from epochal.tasks.steps import TaskAnswer, works_of
from epochal.tasks.task_output import SIDE, TaskOutput
from tests.kit.local_engine.distribution import LocalInput, LocalShuffle
from tests.kit.local_engine.event_time import LocalEventTime, LocalTime
from tests.kit.local_engine.sources import LocalSource
from tests.kit.local_engine.tasks import FAULTLESS, LocalTasks, shipped

Change = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class LocalOperator:
    """An operator. ``output``: the columns of its output. ``sides``: the columns of its side outputs.

    ``inputs``: the distribution of rows to subtasks; by default one input by key. ``reads``: the streams of each
    input; by default all rows of all sources. ``declared``: the operator that decides which rows are late. ``before``:
    for each input, the change of its rows before the shuffle. ``after``: the change of the output.
    """

    name: str
    work: Work
    key: tuple[Column, ...]
    tables: tuple[StateTable, ...]
    output: pa.Schema
    inputs: tuple[LocalInput, ...] = (LocalInput(),)
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict)
    reads: tuple[tuple[str, ...], ...] = ()
    declared: Operator | None = None
    before: tuple[Change, ...] = ()
    after: Change | None = None
    in_epoch: Callable[[EpochPlan], LocalOperator] | None = None
    """Returns the operator of an epoch, if it depends on the epoch."""

    @property
    def output_columns(self) -> pa.Schema:
        """The columns of the output stream."""
        empty = self.output.empty_table()
        return (empty if self.after is None else self.after(empty)).schema


def local_process(
    name: str, process: type[KeyedProcess], key: tuple[Column, ...], rows: pa.Schema, output: pa.Schema
) -> LocalOperator:
    """Return a ``process`` operator over ``rows``, without event time. ``output``: the declared columns of the class
    in Arrow."""
    tables = tuple(state.table(name, key) for state in declared_states(process).values())
    work = ProcessWork(process, tuple(rows.names))
    if work.has_timers:
        tables += timer_tables(name, key, has_event_time=False)
    return LocalOperator(name, work, key, tables, output, (LocalInput(order_by=process.order_columns()),))


class RowsChange(Protocol):
    """A verb between operators with an Arrow implementation."""

    def table(self, rows: pa.Table) -> pa.Table: ...


@dataclass(frozen=True)
class LocalChange:
    """A verb over the streams ``reads``. ``name`` and ``columns``: the name and columns of the output stream."""

    name: str
    change: RowsChange
    reads: tuple[str, ...]
    columns: pa.Schema


@dataclass(frozen=True)
class LocalPipeline:
    """A pipeline without Spark. ``sources``: columns by name. ``steps``: in the order in which rows pass them.

    ``sinks``: the stream that each sink writes: a source, an operator, or a side of an operator (``operator.side``).
    ``loops``: internal sources, whose rows are united with those of the only source. ``graph``: the graph from which
    the pipeline was planned, if any (:func:`tests.kit.local_engine.plans.local_pipeline`).
    """

    sources: Mapping[str, pa.Schema]
    steps: tuple[LocalOperator | LocalEventTime | LocalChange, ...]
    sinks: Mapping[str, str]
    loops: tuple[str, ...] = ()
    graph: Graph | None = None
    kept_out: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The streams of late and of rejected rows, with their columns."""
    tails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The streams that the tail of each loop of the graph reads."""

    @property
    def operators(self) -> tuple[LocalOperator, ...]:
        return tuple(step for step in self.steps if isinstance(step, LocalOperator))

    @property
    def tables(self) -> tuple[StateTable, ...]:
        return tuple(table for operator in self.operators for table in operator.tables)

    def plan(self, sources: Mapping[str, Source]) -> PipelinePlan:
        """Plan sinks and event time. Operators have no plan here, since only Spark uses it."""
        columns = {**self.sources, **{operator.name: operator.output_columns for operator in self.operators}}
        columns |= {f"{one.name}.{side}": schema for one in self.operators for side, schema in one.sides.items()}
        time = WITHOUT_EVENT_TIME if self.graph is None else TimePlan.of(self.graph, sources)
        columns |= self.kept_out
        columns |= {step.name: step.columns for step in self.steps if isinstance(step, LocalChange)}
        sinks = {sink: columns[name] for sink, name in self.sinks.items()}
        return PipelinePlan({}, sinks, time)


@dataclass(frozen=True)
class LocalRunner(EpochRunner):
    """Runs E2 in this process."""

    pipeline: LocalPipeline
    participants: Participants
    configuration: Configuration
    tasks: LocalTasks
    partitioned: Mapping[str, str] = field(default_factory=dict)
    """The partitioned source of each declaration whose rows have partitions."""

    def declaring(self, participants: Participants) -> LocalRunner:
        return replace(self, participants=participants)

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        streams, time = self._sources(plan), LocalTime(plan.conditions)
        rows_read = {name: sum(part.num_rows for part in parts) for name, parts in streams.items()}
        answered: dict[str, list[TaskAnswer]] = {}
        for step in self.pipeline.steps:
            if isinstance(step, LocalEventTime):
                streams.update(self._event_time(plan, step, streams, time))
                continue
            if isinstance(step, LocalChange):
                streams[step.name] = [
                    step.change.table(_united([part for name in step.reads for part in streams[name]]))
                ]
                continue
            step = step if step.in_epoch is None else step.in_epoch(plan)
            inputs = self._inputs(step, streams)
            if step.declared is not None:
                inputs, late = time.on_time(step.declared, inputs)
                streams.update({f"{step.name}.{side}": [rows] for side, rows in late.items()})
            output, answered[step.name] = self._operator(plan, step, inputs)
            streams.update(output)
        read = [self._sink(plan, sink, part) for sink, name in self.pipeline.sinks.items() for part in streams[name]]
        for loop, names in self.pipeline.tails.items():
            read += [self._tail(plan, loop, part) for name in names for part in streams[name]]
        written = [self._written(task, rows, partition) for partition, (task, rows) in enumerate(read)]
        answers = [answer for found in (*answered.values(), written) for answer in found]
        return Answers(
            {name: [answer.handle for answer in found] for name, found in answered.items()},
            [SinkAnswer(partition, answer.handle) for partition, answer in enumerate(written)],
            frozenset(),
            partitions=range(len(read)),
            rows_in=sum(rows_read.values()),
            rows_read=rows_read,
            time=time.observed,
            task_seconds=[answer.seconds for answer in answers],
            work=works_of(answer for found in answered.values() for answer in found),
        )

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return self.participants.operators[handle.owner].deltas(handle)

    def _sources(self, plan: EpochPlan) -> dict[str, list[pa.Table]]:
        """Return the rows of each source, in two partitions."""
        found = {}
        for name, schema in self.pipeline.sources.items():
            mine = [plan.slices[each] for each in (name, *self.pipeline.loops) if each in plan.slices]
            source = self.participants.sources[name]
            rows = _rows(source, mine, schema)
            half = rows.num_rows // 2
            found[name] = [rows.slice(0, half), rows.slice(half)]
        for name, head in self.participants.sources.items():
            if isinstance(head, LoopHead):
                found[loop_stream(name)] = [head.table(plan.slices.get(name))]
        return found

    def _event_time(
        self, plan: EpochPlan, step: LocalEventTime, streams: Mapping[str, list[pa.Table]], time: LocalTime
    ) -> dict[str, list[pa.Table]]:
        source = self.partitioned.get(step.declaration)
        partitions = [WHOLE]
        if source is not None:
            slice = plan.slices.get(source)
            partitions = [] if slice is None else sorted(self.participants.sources[source].partitions_of(slice))
        rows = _united([part for name in step.reads for part in streams[name]])
        kept, rejected = time.accepted(step, rows, partitions)
        return {step.name: [kept], f"{step.name}.{REJECTED}": [rejected]}

    def _inputs(self, operator: LocalOperator, streams: Mapping[str, list[pa.Table]]) -> list[pa.Table]:
        reads = operator.reads or (tuple(self.pipeline.sources),) * len(operator.inputs)
        return [_united([part for name in names for part in streams[name]]) for names in reads]

    def _operator(
        self, plan: EpochPlan, operator: LocalOperator, inputs: Sequence[pa.Table]
    ) -> tuple[dict[str, list[pa.Table]], list[TaskAnswer]]:
        """Return the output and the side outputs by subtask, and the answer of each task."""
        task = OperatorTask(
            operator=operator.name,
            work=operator.work,
            backend=self.participants.operators[operator.name],
            epoch=plan.scope,
            conditions=plan.conditions,
            parallelism=self._subtasks(operator.name),
            max_parallelism=self.configuration.max_parallelism,
            tables=self._tables(operator),
            chains={table.id: plan.chains[table.id] for table in operator.tables},
            key=operator.key,
            output=operator.output,
            sides=operator.sides,
            reconcile=operator.reconcile,
        )
        answers, decoded = [], list[TaskAnswer]()
        parallelism, maximum = self._subtasks(operator.name), self.configuration.max_parallelism
        if operator.before:
            inputs = [change(rows) for change, rows in zip(operator.before, inputs, strict=True)]
        controlled = LocalShuffle(operator.inputs, operator.key, parallelism, maximum).of(inputs)
        data = shipped(task)
        for subtask in range(parallelism):
            mine = controlled.filter(pa.compute.equal(controlled["_subtask"], subtask))
            answer = pa.Table.from_batches(self.tasks.run(data, mine.to_batches(), subtask), task.schema)
            with_handle = answer[HANDLE].is_valid()
            (handle,) = answer.filter(with_handle)[HANDLE].to_pylist()
            decoded.append(TaskAnswer.decode(handle))
            answers.append(answer.filter(pa.compute.invert(with_handle)))
        names: dict[str, str | None] = {operator.name: None, **{f"{operator.name}.{s}": s for s in operator.sides}}
        output = {name: [_side(operator, answer, side) for answer in answers] for name, side in names.items()}
        if operator.after is not None:
            output[operator.name] = [operator.after(rows) for rows in output[operator.name]]
        return output, decoded

    def _subtasks(self, operator: str) -> int:
        planned = {} if self.pipeline.graph is None else self.pipeline.graph.subtasks(self.configuration)
        return planned.get(operator, self.configuration.parallelism_of(operator))

    def _tables(self, operator: LocalOperator) -> tuple[StateTable, ...]:
        """Return the operator's tables, with the expiry from the lineage."""
        known = {table.id: table for table in self.participants.tables}
        return tuple(known.get(table.id, table) for table in operator.tables)

    def _sink(self, plan: EpochPlan, sink: str, rows: pa.Table) -> tuple[SinkTask, pa.Table]:
        return SinkTask(sink, self.participants.sinks[sink], plan.scope), rows

    def _tail(self, plan: EpochPlan, loop: str, rows: pa.Table) -> tuple[SinkTask, pa.Table]:
        return SinkTask(tail_owner(loop), self.participants.loops[loop], plan.scope), rows

    def _written(self, task: SinkTask, rows: pa.Table, partition: int) -> TaskAnswer:
        (answer,) = self.tasks.run(shipped(task), rows.to_batches(), partition)
        return TaskAnswer.decode(answer.column("handle")[0].as_py())


def _rows(source: Source, slices: Sequence[Slice], schema: pa.Schema) -> pa.Table:
    match source:
        case LocalSource():
            return source.table(slices)
        case EntrySource():
            return pa.concat_tables([schema.empty_table(), *map(source.table, slices)])
        case _:
            return read_rows(slices, schema)


def loop_stream(loop: str) -> str:
    """Return the name of the output stream of a loop."""
    return f"loop {loop}"


def _united(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts, promote_options="default")


def _side(operator: LocalOperator, answer: pa.Table, side: str | None) -> pa.Table:
    """Select the rows of a side from the output of a task; ``None`` selects the main output."""
    if not operator.sides:
        return answer.select(operator.output.names)
    output = TaskOutput(operator.output, operator.sides)
    columns = output.columns(side)
    rows = answer.filter(pa.compute.equal(answer[SIDE], output.number(side)))
    return rows.select(list(columns.values())).rename_columns(list(columns))


def read_rows(slices: Sequence[Slice], schema: pa.Schema) -> pa.Table:
    """Return the rows of file slices: JSON lines, with times in microseconds from the Unix epoch."""
    paths = [record["path"] for slice in slices for record in slice.detail["files"]]
    rows = []
    for path in paths:
        with open(path) as lines:
            rows += [json.loads(line) for line in lines]
    return pa.Table.from_pylist(rows, schema)


def local_program(
    orders: ExecutionOrders, pipeline: LocalPipeline, participants: Participants, tasks: LocalTasks = FAULTLESS
) -> Program:
    """Return a program whose tasks this process runs."""
    plan = pipeline.plan(participants.sources)
    runner = LocalRunner(pipeline, participants, orders.configuration, tasks, plan.time.partitions.partitioned)
    return Program(orders, pipeline.graph or Graph(orders.application, ()), plan, participants, runner)
