"""The real engine without Spark: an attempt whose tasks this process runs itself, in milliseconds instead of seconds.

Coordinator, commit queue, recovery, retention and compaction are the driver's; store, catalog, state backends and sinks
are real, and so are the tasks. What is not there is Spark: rows are read, shuffled, sorted and given to the tasks here.
A process that runs :func:`attempt` can be killed at any fault point as a driver can.

Where faults of tasks are planned, each task runs in a process of its own, which may die, and is run again as often as
Spark would.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from epochal import faults
from epochal.contracts.catalog import Catalog
from epochal.contracts.handle import Handle
from epochal.contracts.source import Slice, SliceLimits
from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.state import declared_states
from epochal.engine.answers import Answers, SinkAnswer
from epochal.engine.bases import PendingBases
from epochal.engine.commits import CommitQueue, until_available
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.job import EpochPlan, EpochRunner, Participants
from epochal.engine.pipeline_plan import PipelinePlan
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.recovery import Recovery
from epochal.engine.retention import Retention
from epochal.engine.settings import Configuration, ExecutionOrders
from epochal.engine.triggers import Situation, Step, decide
from epochal.errors import EpochAborted
from epochal.faults import Fault
from epochal.operators.process import ProcessWork
from epochal.pipeline.graph import Graph
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateTable
from epochal.tasks.operator import HANDLE, OperatorTask, Work
from epochal.tasks.sides import SIDE, TaskOutput
from epochal.tasks.sink import SinkTask
from epochal.testing.local_distribution import LocalInput, LocalShuffle

log = logging.getLogger(__name__)

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_PAUSE_SECONDS = 0.02
CLOCK = partial(datetime.now, UTC)


@dataclass(frozen=True)
class LocalOperator:
    """An operator that reads the source's rows. ``output``: the columns that its work gives, ``sides``: beside them.

    ``inputs``: how the rows come to its subtasks; one input by key, unless others are given.
    """

    name: str
    work: Work
    key: tuple[Column, ...]
    tables: tuple[StateTable, ...]
    output: pa.Schema
    inputs: tuple[LocalInput, ...] = (LocalInput(),)
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)


def local_process(
    name: str, process: type[KeyedProcess], key: tuple[Column, ...], rows: pa.Schema, output: pa.Schema
) -> LocalOperator:
    """A ``process`` operator over ``rows``. ``output`` says in Arrow what the class declares."""
    tables = tuple(state.table(name, key) for state in declared_states(process).values())
    work = ProcessWork(process, tuple(rows.names))
    return LocalOperator(name, work, key, tables, output, (LocalInput(order_by=process.order_columns()),))


@dataclass(frozen=True)
class LocalPipeline:
    """One source of JSON files, operators over it, and for each sink the source or the operator that it writes, or of
    an operator a side: ``operator.side``.

    ``loops``: internal sources whose slices name JSON files, too; their rows are united with the source's.
    """

    source: str
    rows: pa.Schema
    operators: tuple[LocalOperator, ...]
    sinks: Mapping[str, str]
    loops: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[StateTable, ...]:
        return tuple(table for operator in self.operators for table in operator.tables)

    @property
    def plan(self) -> PipelinePlan:
        """Of the sinks: operators are planned for Spark alone."""
        columns = {self.source: self.rows, **{operator.name: operator.output for operator in self.operators}}
        columns |= {f"{one.name}.{side}": schema for one in self.operators for side, schema in one.sides.items()}
        return PipelinePlan({}, {sink: columns[name] for sink, name in self.sinks.items()})


@dataclass(frozen=True)
class LocalTasks:
    """How tasks run: with which faults, and how often each is tried (Spark's ``local[N,TRIES]``)."""

    faults: Sequence[Fault] = ()
    tries: int = 1

    def run(self, task: Task, batches: Sequence[pa.RecordBatch], partition: int) -> list[pa.RecordBatch]:
        """All that a copy of the task gives. Raises what it raised the last time, ``EpochAborted`` when it was lost."""
        copy = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
        if not self.faults:
            return _run(copy, batches, partition)
        left = self.tries
        while True:
            answer, left = self._run_apart(partial(_run, copy, batches, partition)), left - 1
            if not isinstance(answer, Exception):
                return answer
            if left <= 0:
                raise answer

    def _run_apart(self, run: Callable[[], list[pa.RecordBatch]]) -> list[pa.RecordBatch] | Exception:
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            self._answer(writing, run)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            data = answer.read()
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            return EpochAborted("A task's process has died.")
        found: list[pa.RecordBatch] | Exception = pickle.loads(data)
        return found

    def _answer(self, writing: int, run: Callable[[], list[pa.RecordBatch]]) -> NoReturn:
        code = 1
        try:
            faults.plan(self.faults)
            with os.fdopen(writing, "wb") as answer:
                answer.write(pickle.dumps(_result(run)))
            code = 0
        except BaseException:  # noqa: BLE001  the task's process must not go on as if it were the driver
            traceback.print_exc()
        finally:
            os._exit(code)


def _result(run: Callable[[], list[pa.RecordBatch]]) -> list[pa.RecordBatch] | Exception:
    try:
        return run()
    except Exception as error:  # noqa: BLE001  whatever a task raises, the driver is to know
        return error


def _run(task: bytes, batches: Sequence[pa.RecordBatch], partition: int) -> list[pa.RecordBatch]:
    context = TaskContext._getOrCreate()
    context._partitionId = partition
    try:
        return list(pickle.loads(task)(iter(batches)))
    finally:
        TaskContext._setTaskContext(None)


@dataclass(frozen=True)
class LocalRunner(EpochRunner):
    """E2 in this process."""

    pipeline: LocalPipeline
    participants: Participants
    configuration: Configuration
    tasks: LocalTasks

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        names = (self.pipeline.source, *self.pipeline.loops)
        rows = read_rows([plan.slices[name] for name in names if name in plan.slices], self.pipeline.rows)
        half = rows.num_rows // 2
        outputs = {self.pipeline.source: [rows.slice(0, half), rows.slice(half)]}
        handles: dict[str, list[Handle]] = {}
        for operator in self.pipeline.operators:
            output, handles[operator.name] = self._operator(plan, operator, rows)
            outputs.update(output)
        inputs = [(sink, part) for sink, name in self.pipeline.sinks.items() for part in outputs[name]]
        answers = [
            SinkAnswer(partition, self._sink(plan, sink, part, partition))
            for partition, (sink, part) in enumerate(inputs)
        ]
        return Answers(handles, answers, (), partitions=len(inputs), rows_in=rows.num_rows)

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return self.participants.operators[handle.owner].deltas(handle)

    def _operator(
        self, plan: EpochPlan, operator: LocalOperator, rows: pa.Table
    ) -> tuple[dict[str, list[pa.Table]], list[Handle]]:
        """By subtask its output, and that of each side, and its handle."""
        task = OperatorTask(
            operator=operator.name,
            work=operator.work,
            backend=self.participants.operators[operator.name],
            epoch=plan.scope,
            conditions=plan.conditions,
            parallelism=self.configuration.parallelism,
            max_parallelism=self.configuration.max_parallelism,
            tables=operator.tables,
            chains={table.id: plan.chains[table.id] for table in operator.tables},
            key=operator.key,
            output=operator.output,
            sides=operator.sides,
        )
        answers, handles = [], []
        parallelism, maximum = self.configuration.parallelism, self.configuration.max_parallelism
        controlled = LocalShuffle(operator.inputs, operator.key, parallelism, maximum).of(rows)
        for subtask in range(self.configuration.parallelism):
            mine = controlled.filter(pa.compute.equal(controlled["_subtask"], subtask))
            answer = pa.Table.from_batches(self.tasks.run(task, mine.to_batches(), subtask), task.schema)
            with_handle = answer[HANDLE].is_valid()
            (handle,) = answer.filter(with_handle)[HANDLE].to_pylist()
            handles.append(Handle.decode(handle))
            answers.append(answer.filter(pa.compute.invert(with_handle)))
        names: dict[str, str | None] = {operator.name: None, **{f"{operator.name}.{s}": s for s in operator.sides}}
        return {name: [_side(operator, answer, side) for answer in answers] for name, side in names.items()}, handles

    def _sink(self, plan: EpochPlan, sink: str, rows: pa.Table, partition: int) -> Handle:
        task = SinkTask(sink, self.participants.sinks[sink], plan.scope)
        (answer,) = self.tasks.run(task, rows.to_batches(), partition)
        return Handle.decode(answer.column("handle")[0].as_py())


def _side(operator: LocalOperator, answer: pa.Table, side: str | None) -> pa.Table:
    """The rows of a side among all that a task gave; ``None`` is its output itself."""
    if not operator.sides:
        return answer.select(operator.output.names)
    output = TaskOutput(operator.output, operator.sides)
    columns = output.columns(side)
    rows = answer.filter(pa.compute.equal(answer[SIDE], output.number(side)))
    return rows.select(list(columns.values())).rename_columns(list(columns))


def read_rows(slices: Sequence[Slice], schema: pa.Schema) -> pa.Table:
    """The rows of slices of files: JSON lines."""
    paths = [record["path"] for slice in slices for record in slice.detail["files"]]
    rows = []
    for path in paths:
        with open(path) as lines:
            rows += [json.loads(line) for line in lines]
    return pa.Table.from_pylist(rows, schema)


def attempt(
    orders: ExecutionOrders,
    pipeline: LocalPipeline,
    participants: Participants,
    catalog: Catalog,
    tasks: LocalTasks = LocalTasks(),
    epochs: int | None = None,
    now: Callable[[], datetime] = CLOCK,
) -> None:
    """One attempt, until there is nothing to do ``now``, or of so many ``epochs``; in one thread.

    Commits fall behind as far as they may: the queue works when it is full, after a failure, and at the end. Raises
    what ends an attempt: ``Fenced``, ``EpochAborted`` when more than ``tolerable_failed_epochs`` failed in a row.
    """
    store, configuration = SnapshotStore(orders.store), orders.configuration
    runner = LocalRunner(pipeline, participants, configuration, tasks)
    program = Program(orders, Graph(orders.application, ()), pipeline.plan, participants, runner)
    current = CurrentProgram(program)
    catalog.begin_attempt()
    for name, sink in participants.sinks.items():
        until_available(name, partial(sink.check, program.plan.sinks[name]), time.sleep, lambda waiting: None)
    queue = CommitQueue(catalog, current)
    position = Recovery(program, catalog, store, queue, time.sleep, lambda waiting: None).run()
    bases = PendingBases()
    coordinator = Coordinator(current, catalog, store, queue, position, bases, now=now)
    compaction = Compaction(store, position, bases, current)
    retention = queue.retain = Retention(store, current, compaction, coordinator.aborted)
    ran = failed = 0
    while epochs is None or ran < epochs:
        if not queue.has_room:
            _step(queue)
            continue
        slices = coordinator.plan_slices(SliceLimits(None))
        decision = decide(situation_of(coordinator, slices))
        if decision.step is not Step.OPEN:
            break
        try:
            coordinator.run_epoch(slices, decision.opened_for)
        except EpochAborted:
            failed += 1
            if failed > configuration.tolerable_failed_epochs:
                raise
            _step(queue)  # what has gone wrong may have to do with it
            continue
        ran, failed = ran + 1, 0
    while not queue.empty:
        _step(queue)
    retention.finish()
    compaction.finish()
    catalog.finish(None)


def situation_of(coordinator: Coordinator, slices: Mapping[str, Slice]) -> Situation:
    """Of a loop that goes on as long as there is something to do, without an interval."""
    return Situation(
        has_room=True,
        ended=False,
        until_interval=0.0,
        until_due=coordinator.until_due,
        in_flight=coordinator.in_flight,
        has_input=coordinator.has_input(slices),
    )


def _step(queue: CommitQueue) -> None:
    if not queue.step():
        time.sleep(_PAUSE_SECONDS)
