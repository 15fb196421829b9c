"""Traces of real runs: the engine's subtasks and its sinks as processes of definition 3.4.2.

A :class:`Recorder` wraps the work of the engine's tasks, on Spark or without it. Every task records the rows that it
consumed and produced, the time, and its pre-commits. The store, not the recorder, then decides which runs count: a run
has happened if a manifest names its pre-commits. The cut of an epoch is the runs named by the manifests up to its own,
with the rows of their slices. A manifest that names the files of another epoch, a task that receives another epoch's
rows, or rows lost between two tasks therefore break an invariant.

The actions of the trace are the runs of tasks: one run consumes all rows of an epoch for a subtask. A message is a
row, identified by a column that all streams have. A task that consumes rows must change state, otherwise no manifest
names its run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa

from epochal.contracts.backend import DecidedEpoch, SinkBackend, SinkTransaction
from epochal.contracts.catalog import Succession
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.contracts.source import Slice
from epochal.contracts.state import StateBackend, StateTransaction, StateView
from epochal.engine.program import Program
from epochal.engine.spark_runner import SparkRunner
from epochal.pipeline.graph import Graph, NodeId, OperatorNode, SourceNode, inputs
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.tasks.operator import Subtask, Work
from epochal.tasks.task_output import OutputBatch, SideRows
from tests.kit.cuts.traces import Event, Mark, Trace, cut_violations
from tests.kit.local_engine.engine import LocalOperator, LocalRunner

RowsOf = Callable[[str, Slice], Sequence[Hashable]]
"""Function of a source and a slice: the identifying column's value for each of its rows."""


@dataclass(frozen=True)
class Run:
    """One run of a task that pre-committed."""

    id: str
    name: str
    subtask: int
    ended: int
    consumed: tuple[Any, ...]
    produced: tuple[Any, ...]
    names: tuple[str, ...]
    """The names in the manifest if the run has happened."""

    @classmethod
    def noted(cls, note: Mapping[str, Any]) -> Run:
        lists = {name: tuple(note[name]) for name in ("consumed", "produced", "names")}
        return cls(note["id"], note["name"], note["subtask"], note["ended"], **lists)

    @property
    def process(self) -> str:
        return f"{self.name}[{self.subtask}]"

    def __str__(self) -> str:
        return f"{self.process} run {self.id}"


@dataclass(frozen=True)
class RowEvent:
    """A source produces a row."""

    source: str
    row: Hashable


@dataclass
class RecordedRun:
    """``cuts``: the events in the snapshot of each epoch. ``misrouted``: rows not produced or consumed once."""

    trace: Trace
    cuts: dict[int, set[Event]]
    misrouted: list[str]

    @property
    def violations(self) -> list[str]:
        found = [problem for epoch, cut in self.cuts.items() for problem in cut_violations(self.trace, epoch, cut)]
        return found + self.misrouted


@dataclass(frozen=True)
class Recorder:
    """``folder``: a folder of this machine for the records of tasks. ``column``: identifies the row in every stream."""

    folder: str
    column: str

    def recorded(self, program: Program) -> Program:
        """Return the program with recording tasks."""
        of_program = program.participants
        participants = replace(
            of_program,
            operators={name: RecordedState(self, backend) for name, backend in of_program.operators.items()},
            sinks={name: RecordedSink(self, name, backend) for name, backend in of_program.sinks.items()},
        )
        match program.runner:
            case SparkRunner() as runner:
                operators = {name: replace(plan, work=self.work(plan.work)) for name, plan in runner.operators.items()}
                runner = replace(runner, participants=participants, operators=operators)
            case LocalRunner() as local:
                steps = tuple(
                    replace(step, work=self.work(step.work)) if isinstance(step, LocalOperator) else step
                    for step in local.pipeline.steps
                )
                pipeline = replace(local.pipeline, steps=steps)
                return replace(
                    program,
                    participants=participants,
                    runner=replace(local, participants=participants, pipeline=pipeline),
                )
            case other:
                raise TypeError(f"tasks of a {type(other).__name__} cannot be recorded")
        return replace(program, participants=participants, runner=runner)

    def work(self, work: Work) -> Work:
        """Return the work, wrapped to report consumed and produced rows to its transaction."""
        return cast(Work, RecordedWork(self, work))

    def values(self, batch: pa.RecordBatch) -> list[Any]:
        return [value for value in batch.column(self.column).to_pylist() if value is not None]

    def note(
        self, name: str, subtask: int, consumed: Sequence[Any], produced: Sequence[Any], names: Sequence[str]
    ) -> None:
        """Record a run. A run without rows is no action."""
        if not consumed and not produced:
            return
        id = uuid4().hex[:12]
        noted = {
            "id": id,
            "name": name,
            "subtask": subtask,
            "ended": time.monotonic_ns(),
            "consumed": consumed,
            "produced": produced,
            "names": names,
        }
        (Path(self.folder) / f"{id}.json").write_text(json.dumps(noted))

    @property
    def runs(self) -> list[Run]:
        """All runs that pre-committed, in the order of their pre-commits, including aborted and repeated ones."""
        noted = [json.loads(path.read_text()) for path in Path(self.folder).glob("*.json")]
        return sorted((Run.noted(run) for run in noted), key=lambda run: run.ended)

    def read(self, manifests: Sequence[Manifest], reads: Mapping[str, Collection[str]], rows_of: RowsOf) -> RecordedRun:
        """Return the trace of a lineage, and the cut of each of its epochs.

        ``manifests``: the whole lineage, oldest first. ``reads``: by operator, and by ``sink NAME``, the sources and
        operators whose rows it consumes (:func:`reads_of`).
        """
        happened: dict[int, list[Run]] = {}
        # Among runs with identical pre-commits, which a manifest cannot distinguish, the last one counts.
        last = {(run.process, run.names): run for run in self.runs}
        distinct = [run for run in self.runs if last[run.process, run.names] == run]
        for manifest in manifests:
            names = _named_by(manifest)
            happened[manifest.epoch] = [run for run in distinct if run.names and names.issuperset(run.names)]
        all_runs = [run for run in distinct if any(run in runs for runs in happened.values())]
        processes: dict[str, list[Event]] = {}
        cuts: dict[int, set[Event]] = {}
        cut: set[Event] = set()
        for manifest in manifests:
            for source in _sources(manifests):
                rows = rows_of(source, manifest.slices[source]) if source in manifest.slices else ()
                produced = [RowEvent(source, row) for row in rows]
                processes.setdefault(source, []).extend([*produced, Mark(source, manifest.epoch)])
                cut = cut | set(produced)
            cut = cuts[manifest.epoch] = cut | set(happened[manifest.epoch])
        for run in all_runs:
            processes.setdefault(run.process, []).append(run)
        return _joined(processes, all_runs, cuts, reads)


def reads_of(graph: Graph) -> dict[str, set[str]]:
    """Return, by operator and by ``sink NAME``, the sources and operators whose rows it consumes."""

    def origins(ids: Sequence[NodeId]) -> set[str]:
        found: set[str] = set()
        for id in ids:
            node = graph.node(id)
            found |= {node.name} if isinstance(node, (SourceNode, OperatorNode)) else origins(inputs(node))
        return found

    operators = {node.name: origins(node.inputs) for node in graph.operators}
    return operators | {f"sink {node.name}": origins((node.input,)) for node in graph.sinks}


@dataclass(frozen=True)
class RecordedWork:
    """A work that reports the rows that it consumes and produces to its transaction."""

    recorder: Recorder
    inner: Work

    @property
    def needs_order(self) -> bool:
        return self.inner.needs_order

    def __getattr__(self, name: str) -> Any:
        """Delegate the attributes that the plan uses to the work."""
        if name in ("inner", "recorder"):
            raise AttributeError(name)  # during unpickling
        return getattr(self.inner, name)

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        transaction = subtask.transaction
        assert isinstance(transaction, RecordedStateTransaction)

        def taken() -> Iterator[pa.RecordBatch]:
            for batch in rows:
                transaction.consumed += self.recorder.values(batch)
                yield batch

        for batch in self.inner.run(subtask, taken()):
            if not isinstance(batch, SideRows):
                transaction.produced += self.recorder.values(batch)
            yield batch


@dataclass
class RecordedStateTransaction(StateTransaction):
    recorder: Recorder
    task: TaskScope
    inner: StateTransaction
    consumed: list[Any] = field(default_factory=list)
    produced: list[Any] = field(default_factory=list)

    def view(self, table: str) -> StateView:
        return self.inner.view(table)

    def stage(self, table: str, changes: pa.Table) -> None:
        self.inner.stage(table, changes)

    def pre_commit(self) -> Handle:
        handle = self.inner.pre_commit()
        paths = [delta["file"]["path"] for delta in handle.payload["deltas"]]
        self.recorder.note(self.task.owner, self.task.subtask, self.consumed, self.produced, paths)
        return handle

    def discard(self) -> None:
        self.inner.discard()


@dataclass(frozen=True)
class RecordedState(StateBackend):
    recorder: Recorder
    inner: StateBackend

    @property
    def kind(self) -> str:
        return self.inner.kind

    def start(self, task: TaskScope) -> StateTransaction:
        return RecordedStateTransaction(self.recorder, task, self.inner.start(task))

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return self.inner.deltas(handle)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self.inner.commit(epoch, handles)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self.inner.abort(epoch, handles)

    def recover(self, epoch: EpochScope) -> None:
        self.inner.recover(epoch)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return self.inner.sweep(epoch, keep)


@dataclass
class RecordedSinkTransaction(SinkTransaction):
    recorder: Recorder
    task: TaskScope
    inner: SinkTransaction
    consumed: list[Any] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch) -> None:
        self.consumed += self.recorder.values(batch)
        self.inner.write(batch)

    def pre_commit(self) -> Handle:
        handle = self.inner.pre_commit()
        self.recorder.note(f"sink {self.task.owner}", self.task.subtask, self.consumed, [], [_name_of(handle)])
        return handle

    def discard(self) -> None:
        self.inner.discard()


@dataclass(frozen=True)
class RecordedSink(SinkBackend):
    recorder: Recorder
    name: str
    inner: SinkBackend

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def target(self) -> str:
        return self.inner.target

    def start(self, task: TaskScope) -> SinkTransaction:
        return RecordedSinkTransaction(self.recorder, task, self.inner.start(task))

    def succeed(self, epoch: EpochScope, succession: Succession) -> None:
        self.inner.succeed(epoch, succession)

    def shown(self, epoch: EpochScope) -> int | None:
        return self.inner.shown(epoch)

    def check(self, schema: pa.Schema) -> None:
        self.inner.check(schema)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self.inner.commit(epoch, handles)

    def commit_decided(self, epochs: Sequence[DecidedEpoch]) -> None:
        self.inner.commit_decided(epochs)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self.inner.abort(epoch, handles)

    def recover(self, epoch: EpochScope) -> None:
        self.inner.recover(epoch)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return self.inner.sweep(epoch, keep)


def _name_of(handle: Handle) -> str:
    """The handle's JSON without the places of its files, which the driver adds."""
    return handle.model_copy(update={"payload": _unplaced(handle.payload)}).encode().decode()


def _unplaced(value: Any) -> Any:
    match value:
        case list():
            return [_unplaced(each) for each in value]
        case dict():
            return {name: _unplaced(each) for name, each in value.items() if name != "within"}
    return value


def _named_by(manifest: Manifest) -> set[str]:
    """Return the names in the manifest: paths of deltas, and its sinks' handles."""
    handles = {_name_of(handle) for sink in manifest.sinks.values() for handle in sink.handles}
    return {delta.file.path for delta in manifest.deltas} | handles


def _sources(manifests: Sequence[Manifest]) -> list[str]:
    return sorted({name for manifest in manifests for name in manifest.slices})


def _joined(
    processes: dict[str, list[Event]],
    runs: Sequence[Run],
    cuts: dict[int, set[Event]],
    reads: Mapping[str, Collection[str]],
) -> RecordedRun:
    """Match consumers with producers: rows are sent once to each operator and sink that reads the stream."""
    produced: dict[str, dict[Hashable, Event]] = {}
    misrouted = []
    for events in processes.values():
        for event in events:
            match event:
                case RowEvent(source, row):
                    pairs = [(source, row)]
                case Run():
                    pairs = [(event.name, row) for row in event.produced]
                case _:
                    continue
            for stream, row in pairs:
                if row in produced.setdefault(stream, {}):
                    misrouted.append(f"{stream} produced row {row} twice: {event}")
                produced[stream][row] = event
    productions: dict[Event, set[Event]] = {}
    for name, streams in reads.items():
        expected = {row: event for stream in streams for row, event in produced.get(stream, {}).items()}
        consumed: set[Hashable] = set()
        for run in runs:
            if run.name != name:
                continue
            for row in run.consumed:
                if row not in expected:
                    misrouted.append(f"{run} consumed row {row}, which no task produced")
                elif row in consumed:
                    misrouted.append(f"{run} consumed row {row}, which was already consumed")
                else:
                    productions.setdefault(expected[row], set()).add(run)
                consumed.add(row)
        misrouted += [f"{name} never consumed row {row} of {expected[row]}" for row in expected.keys() - consumed]
    return RecordedRun(Trace(processes, productions), cuts, misrouted)
