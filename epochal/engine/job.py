"""Input and result of E2, and E3: the check that every subtask returned exactly one handle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from epochal.contracts.backend import Backend, SinkBackend
from epochal.contracts.conditions import Due, EpochConditions
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope
from epochal.contracts.measurements import Origin, StragglerMove, TaskStep, Work
from epochal.contracts.source import Slice, Source
from epochal.contracts.state import StateBackend
from epochal.engine.epoch_parts import JobTime
from epochal.errors import AuthorError, HandlesIncomplete, MalformedRecord
from epochal.operators.loops.work import LoopTail
from epochal.snapshots.chain import Chain
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.packs import Pack, carried_by
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable
from epochal.tasks.dead_letters import DeadLetters, too_many


@dataclass(frozen=True)
class EpochPlan:
    """Complete input of E2: the epoch and its conditions, the slice of each source, and the chain of each state table
    at the parent."""

    scope: EpochScope
    conditions: EpochConditions
    slices: Mapping[str, Slice]
    chains: Mapping[str, Chain]
    queries: bytes = b""
    """Content of the file that ``conditions.queries`` names; empty without standing queries."""
    machines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The machines that ran the subtasks of the parent epoch, by operator; see :class:`Answers`."""
    stragglers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Subtasks that have been slow for a while, by operator."""


class EpochRunner(ABC):
    """Runs E2 on some cluster. Pure: the same plan may be run again after a failure."""

    def activate(self, before: EpochRunner | None = None) -> None:  # noqa: B027 most runners need no settings
        """Set what this runner relies on in a session that several runners share. It runs the following epochs, until
        another runner is activated. ``before``: the runner that it replaces."""

    def declaring(self, participants: Participants) -> EpochRunner:
        """This runner with the declarations of state tables in ``participants.tables``."""
        return self

    @abstractmethod
    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        """Run the job and return the answers of all subtasks. Raises ``EpochTimeout``, ``EpochAborted``."""

    @abstractmethod
    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        """Delta files that an operator's handle names."""


@dataclass(frozen=True)
class Participants:
    """Participants of an epoch, by name: sources, state backends of operators, backends of sinks, tails of loops.

    The head of a loop is one of the sources. Its tail takes rows as a sink does, but has no commit.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    operators: Mapping[str, StateBackend] = field(default_factory=dict)
    sinks: Mapping[str, SinkBackend] = field(default_factory=dict)
    tables: tuple[StateTable, ...] = ()
    loops: Mapping[str, LoopTail] = field(default_factory=dict)
    dead_letters: Mapping[str, DeadLetters] = field(default_factory=dict)
    """By the sink whose rejected rows they are; their own sinks are in ``sinks`` too."""

    @property
    def backends(self) -> list[Backend]:  # type: ignore[type-arg]
        """Backends of all operators, sinks and loops. A list, since an operator and a sink may have the same name."""
        return [*self.operators.values(), *self.sinks.values(), *self.loops.values()]


@dataclass(frozen=True)
class SinkAnswer:
    """One row of the job's result: the handle of a sink task, and its partition in the last stage."""

    partition: int
    handle: Handle
    reason: str | None = None
    """Why a sink rejected the first of the rows that the handle stands for."""


@dataclass(frozen=True)
class ObservedTime:
    """Event times that an epoch observed. ``latest``: the greatest by declaration and partition, in microseconds.

    ``rejected``: number of rows without a valid event time, by declaration. ``late``: number of late rows, by operator.
    """

    latest: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """Result of E2. ``partitions``: partitions of the job's last stage that must answer."""

    operators: Mapping[str, Sequence[Handle]]
    sinks: Sequence[SinkAnswer]
    drained_partitions: frozenset[int]
    """Partitions of the last stage with the handles of an operator without readers."""
    partitions: Collection[int]
    rows_in: int = 0
    rows_read: Mapping[str, int] = field(default_factory=dict)
    """The same by source."""
    time: ObservedTime = ObservedTime()
    task_seconds: Sequence[Mapping[TaskStep, float]] = ()
    """Durations of the steps of each task, in any order."""
    work: Mapping[tuple[str, int], Work] = field(default_factory=dict)
    """Work by operator and subtask."""
    job: JobTime = field(default_factory=JobTime)
    """Times of the parts of E2."""
    machines: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """The machine that ran each subtask, by operator; only those that are known."""
    unplaced: str | None = None
    """The reason why no subtask had a fixed place."""
    moved_stragglers: Sequence[StragglerMove] = ()
    """All stragglers that have moved since the attempt began."""
    read_bytes: Mapping[Origin, int] = field(default_factory=dict)
    """Bytes of state that the tasks read, by where they found them."""
    repeated: Callable[[], bool] = lambda: True
    """False if every task of the epoch certainly ran once, so that no lost run has left files."""

    def worked(self, subtasks: Mapping[str, int]) -> dict[str, list[Work]]:
        """Work by operator, in the order of its subtasks. ``subtasks``: their number, by operator."""
        return {
            name: [self.work.get((name, subtask), Work()) for subtask in range(subtasks[name])]
            for name in self.operators
        }


@dataclass(frozen=True)
class Collected:
    """Handles by operator, by sink and by loop, complete, in subtask order."""

    operators: Mapping[str, tuple[Handle, ...]]
    sinks: Mapping[str, tuple[Handle, ...]]
    rows_in: int
    time: ObservedTime = ObservedTime()
    loops: Mapping[str, tuple[Handle, ...]] = field(default_factory=dict)
    machines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The machine of each subtask, by operator, in subtask order; an operator with an unknown one is left out."""
    repeated: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Of :class:`Answers`."""

    def placed(self, pack: Pack) -> Collected:
        """The same, with handles that name their files' places in the pack."""
        return self._mapped(pack.placed)

    def stored(self, store: SnapshotStore) -> Collected:
        """The same, after the files that handles carry were written on their own."""
        for path, data in carried_by(self.all).items():
            store.write(path, data)
        return self._mapped(lambda handle: handle.model_copy(update={"carried": {}}) if handle.carried else handle)

    def _mapped(self, change: Callable[[Handle], Handle]) -> Collected:
        every = (self.operators, self.sinks, self.loops)
        operators, sinks, loops = ({name: tuple(map(change, found)) for name, found in of.items()} for of in every)
        return replace(self, operators=operators, sinks=sinks, loops=loops)

    @property
    def due(self) -> dict[str, Due]:
        """By operator, the earliest due times of its subtasks. Operators without due times are left out."""
        found = {name: _earliest(handles) for name, handles in self.operators.items()}
        return {name: due for name, due in found.items() if not due.nothing}

    @property
    def dropped_timers(self) -> dict[str, int]:
        """By operator, the number of dropped timers. Operators without any are left out."""
        found = {name: sum(handle.dropped_timers for handle in handles) for name, handles in self.operators.items()}
        return {name: dropped for name, dropped in found.items() if dropped}

    @property
    def all(self) -> list[Handle]:
        every = (self.operators, self.sinks, self.loops)
        return [handle for found in every for handles in found.values() for handle in handles]


def _earliest(handles: Sequence[Handle]) -> Due:
    return reduce(Due.earliest, (handle.due for handle in handles if handle.due is not None), Due())


def collect(
    answers: Answers,
    subtasks: Mapping[str, int],
    sinks: Sequence[str],
    rejecting: Collection[str] = (),
    loops: Sequence[str] = (),
    dead_letters: Mapping[str, DeadLetters] | None = None,
) -> Collected:
    """Check that each subtask of each operator, sink and loop returned exactly one handle. ``subtasks``: the number of
    subtasks of each operator. ``dead_letters``: by the sink whose rejected rows they are.

    Raises :class:`HandlesIncomplete`, :class:`AuthorError` if subtasks differ in a value that must agree, and
    :class:`MalformedRecord` if rows of a declaration in ``rejecting`` have no valid event time, and
    :class:`RowRejected` if a sink rejects more rows than its dead letters take.
    """
    dead_letters = dead_letters or {}
    _check_rejected(answers.time.rejected, rejecting)
    written = _sinks(answers, [*sinks, *map(tail_owner, loops)], {each.sink for each in dead_letters.values()})
    for sink, each in dead_letters.items():
        _check_dead_letters(answers, sink, each, written)
    return Collected(
        operators={name: _complete(name, answers.operators.get(name, ()), number) for name, number in subtasks.items()},
        sinks={name: written[name] for name in sinks},
        rows_in=answers.rows_in,
        time=answers.time,
        loops={name: written[tail_owner(name)] for name in loops},
        machines={
            name: [found[subtask] for subtask in range(number)]
            for name, number in subtasks.items()
            if (found := answers.machines.get(name, {})).keys() >= set(range(number))
        },
        repeated=answers.repeated,
    )


def tail_owner(loop: str) -> str:
    """Owner of the handles of a loop's tail; never equal to a sink's name."""
    return f"loop {loop}"


def _complete(operator: str, handles: Sequence[Handle], parallelism: int) -> tuple[Handle, ...]:
    counts = Counter(handle.subtask for handle in handles)
    wrong = [subtask for subtask in range(parallelism) if counts[subtask] != 1]
    strange = sorted(set(counts) - set(range(parallelism)))
    if wrong or strange:
        seen = ", ".join(f"{subtask}: {counts[subtask]}" for subtask in (*wrong, *strange))
        raise HandlesIncomplete(
            f"Operator {operator!r} must return exactly one handle for each of its {parallelism} subtasks; "
            f"handles by subtask: {seen}. Possible causes: a limit or an always-false filter after the operator, "
            "or a stage that ran twice."
        )
    in_order = tuple(sorted(handles, key=lambda handle: handle.subtask))
    _check_agreement(operator, in_order)
    return in_order


def _check_agreement(operator: str, handles: Sequence[Handle]) -> None:
    differing = [handle.subtask for handle in handles if handle.agreed != handles[0].agreed]
    if differing:
        raise AuthorError(
            f"Operator {operator!r}: process_broadcast() wrote different broadcast state on subtask {differing[0]} "
            f"and on "
            "subtask 0. Broadcast state must be equal on every subtask: compute it only from the control row and "
            "broadcast state, not from ctx.subtask, the clock, random numbers or the order of a set."
        )


def _check_rejected(rejected: Mapping[str, int], rejecting: Collection[str]) -> None:
    for name in sorted(rejecting):
        if rows := rejected.get(name, 0):
            raise MalformedRecord(
                f"Watermark {name!r}: {rows} rows of the epoch have no event time, or one too far in the future "
                "(max_ahead). Correct them in the source, or set on_reject='count' in with_watermark() to drop and "
                "count them."
            )


def _check_dead_letters(
    answers: Answers, sink: str, dead_letters: DeadLetters, written: Mapping[str, Sequence[Handle]]
) -> None:
    handles = written[dead_letters.sink]
    if [handle.subtask for handle in handles] != [handle.subtask for handle in written[sink]]:
        raise HandlesIncomplete(
            f"Each subtask of sink {sink!r} must return exactly one handle for its dead letters too, in "
            f"{dead_letters.sink!r}."
        )
    rows = sum(handle.rows for handle in handles)
    if rows > dead_letters.most:
        reasons = (each.reason for each in answers.sinks if each.handle.owner == dead_letters.sink and each.reason)
        raise too_many(sink, rows, dead_letters.most, next(reasons, None))


def _sinks(answers: Answers, sinks: Sequence[str], beside: Collection[str]) -> dict[str, tuple[Handle, ...]]:
    """Handles by sink. ``beside``: sinks whose handles come from the tasks of others."""
    own = (answer.partition for answer in answers.sinks if answer.handle.owner not in beside)
    counts = Counter([*own, *answers.drained_partitions])
    wrong = [partition for partition in answers.partitions if counts[partition] != 1]
    if wrong or len(counts) > len(answers.partitions):
        raise HandlesIncomplete(
            f"Each of the {len(answers.partitions)} sink partitions must answer exactly once; "
            f"wrong: {', '.join(f'partition {p} answered {counts[p]} times' for p in wrong[:10])}."
        )
    handles: dict[str, list[Handle]] = {name: [] for name in sinks}
    for answer in sorted(answers.sinks, key=lambda answer: answer.partition):
        if answer.handle.owner not in handles:
            raise HandlesIncomplete(
                f"The job returned a handle of {answer.handle.owner!r}, which is not a sink of this pipeline."
            )
        handles[answer.handle.owner].append(answer.handle)
    return {name: tuple(found) for name, found in handles.items()}
