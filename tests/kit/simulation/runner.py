"""E2 of the simulation: the only operator, over JSON deltas, with tasks that fail and are retried or run twice."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from epochal.contracts.conditions import Due
from epochal.contracts.handle import Handle
from epochal.contracts.source import Slice
from epochal.engine.job import Answers, EpochPlan, EpochRunner, ObservedTime, SinkAnswer
from epochal.errors import EpochAborted
from epochal.snapshots import layout
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.task_files import TaskFiles
from epochal.state.table import StateTable
from epochal.state.watermarks import WHOLE
from tests.kit.simulation.pipeline import (
    ALARMS,
    LATE,
    LOOP,
    OPERATOR,
    PARALLELISM,
    REMINDERS,
    SOURCE,
    TABLE,
    TIME,
    Alarms,
    Follows,
    FromOutside,
    Reminders,
    Rows,
    SimulatedSink,
    SimulatedTail,
    Totals,
    World,
    alarms_after,
    follows,
    from_outside,
    left,
)


@dataclass(frozen=True)
class ParentState:
    """The state at the parent epoch."""

    totals: Totals
    reminders: Reminders
    alarms: Alarms


class SimulatedRunner(EpochRunner):
    """E2 without Spark. Each subtask can fail and be retried, or run twice; only one of its handles is returned."""

    def __init__(self, world: World, sink: SimulatedSink, tail: SimulatedTail, chance: random.Random) -> None:
        self._world, self._sink, self._tail, self._chance = world, sink, tail, chance

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        outside = from_outside(plan.slices.get(SOURCE), self._world.log, plan.conditions.watermarks(OPERATOR).late)
        events = [*outside.on_time, *records_of_the_loop(plan.slices)]
        links = {id: [link.deltas for link in chain.links] for id, chain in plan.chains.items()}
        parent = ParentState(
            read_totals(self._world.store, links[TABLE.id]),
            read_waiting(self._world.store, links[REMINDERS.id], REMINDERS),
            read_waiting(self._world.store, links[ALARMS.id], ALARMS),
        )
        operators, sinks, repeated = [], [], False
        for subtask in range(PARALLELISM):
            runs = self._chance.choice([1, 1, 1, 2])
            repeated |= runs > 1
            for _ in range(runs):
                handle, found, output = self._subtask(plan, subtask, events, outside, parent)
                sink = self._sink.stage(plan.scope, subtask, output)
                tail = self._tail.stage(subtask, found.in_flight)
            operators.append(handle)
            sinks += [SinkAnswer(subtask, sink), SinkAnswer(PARALLELISM + subtask, tail)]
            if self._chance.random() < 0.03:
                raise EpochAborted("a task failed too often")
        if self._chance.random() < 0.02:
            operators.pop()
        time = ObservedTime({TIME: {WHOLE: outside.latest}}, late={OPERATOR: len(outside.late)})
        rows_in = len(events) + len(outside.late)
        return Answers(
            {OPERATOR: operators},
            sinks,
            frozenset(),
            partitions=range(2 * PARALLELISM),
            rows_in=rows_in,
            time=time,
            repeated=lambda: repeated,
        )

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return tuple(DeltaFile.model_validate(item) for item in handle.payload["deltas"])

    def _subtask(
        self, plan: EpochPlan, subtask: int, events: Rows, outside: FromOutside, parent: ParentState
    ) -> tuple[Handle, Follows, Rows]:
        conditions = plan.conditions
        reminders, alarms = _of_subtask(subtask, parent.reminders), _of_subtask(subtask, parent.alarms)
        rows = [(key, value) for key, value in events if key % PARALLELISM == subtask]
        found = follows(rows, parent.totals, reminders, conditions.epoch_time, conditions.draining)
        fire = conditions.watermarks(OPERATOR).fire
        changed, alarmed = alarms_after(alarms, _of_subtask(subtask, outside.alarms), fire)
        late = [(key, LATE) for key, _ in outside.late if key % PARALLELISM == subtask]
        # A separate generator, so that the sizes do not change the faults of a seed.
        sizes = random.Random(f"{plan.scope.key} {plan.scope.attempt} {subtask}")
        files = TaskFiles(self._world.store, sizes.choice([0, 100, 10_000]))
        deltas = self._deltas(files, plan, subtask, TABLE, sorted(found.totals.items()))
        deltas += self._deltas(files, plan, subtask, REMINDERS, sorted(found.reminders.items()))
        deltas += self._deltas(files, plan, subtask, ALARMS, sorted(changed.items()))
        due = Due(
            processing=min(left(reminders, found.reminders).values(), default=None),
            event=min(left(alarms, changed).values(), default=None),
        )
        handle = Handle(
            owner=OPERATOR,
            subtask=subtask,
            rows=len(found.totals),
            bytes=0,
            payload={"deltas": [delta.model_dump() for delta in deltas]},
            carried=files.carried,
            due=None if due.nothing else due,
            dropped_timers=found.dropped,
        )
        return handle, found, [*found.output, *alarmed, *late]

    def _deltas(
        self, files: TaskFiles, plan: EpochPlan, subtask: int, table: StateTable, rows: Sequence[Any]
    ) -> list[DeltaFile]:
        if not rows:
            return []
        path = layout.delta(plan.scope.key, table.id, subtask)
        file = files.write_file(path, pa.py_buffer(json.dumps(rows).encode()), len(rows))
        return [DeltaFile(table=table.id, subtask=subtask, parallelism=PARALLELISM, file=file)]


def records_of_the_loop(slices: Mapping[str, Slice]) -> Rows:
    """Return the loop's output in an epoch."""
    return [(key, value) for key, value in slices[LOOP].detail["records"]] if LOOP in slices else []


def _of_subtask(subtask: int, times: dict[int, int]) -> dict[int, int]:
    return {key: at for key, at in times.items() if key % PARALLELISM == subtask}


def read_totals(store: SnapshotStore, links: Sequence[Sequence[DeltaFile]]) -> Totals:
    """Return totals from their deltas, oldest first; deltas of other tables are ignored."""
    return dict(_rows(store, links, TABLE))


def read_waiting(store: SnapshotStore, links: Sequence[Sequence[DeltaFile]], table: StateTable) -> dict[int, int]:
    """Return the times of pending reminders or alarms by key; see :func:`read_totals`."""
    times = dict(_rows(store, links, table))
    return {key: at for key, at in times.items() if at is not None}


def _rows(store: SnapshotStore, links: Sequence[Sequence[DeltaFile]], table: StateTable) -> Iterator[tuple[int, Any]]:
    for delta in (delta for deltas in links for delta in deltas if delta.table == table.id):
        yield from json.loads(store.read_file(delta.file, "the simulation"))
