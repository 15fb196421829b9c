"""The epoch loop: retries of aborted epochs, epochs without input, and the lag of commits."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pytest

from epochal.background.task import BackgroundTask
from epochal.contracts.catalog import Directive, QueryCommand, VersionOrder
from epochal.contracts.conditions import Due
from epochal.contracts.configuration import Configuration
from epochal.contracts.handle import Handle
from epochal.engine.commits import BackgroundCommits, CommitQueue
from epochal.engine.compaction import Compaction
from epochal.engine.coordinator import Coordinator
from epochal.engine.executor_wait import ExecutorWait
from epochal.engine.failures import failure_of
from epochal.engine.job import Answers, EpochPlan, EpochRunner, Participants
from epochal.engine.loop import EpochLoop, TransactionOrders
from epochal.engine.optimization import Optimizations
from epochal.engine.position import PendingBases, Position
from epochal.engine.program import CurrentProgram, Program
from epochal.engine.reconfiguration import Reconfigurations
from epochal.engine.retention import Retention
from epochal.errors import EpochAborted, MalformedRecord, SchemaError, SinkUnavailable, SourceError, SparkLost
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.tasks.reporting import Reporting, author_error
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.programs import EmptyEpochs, program_of
from tests.kit.simulation.pipeline import SimulatedSource, SimulatedState, World

STEPS = ("E1", "E2", "E3", "E4", "E5", "E6", "E7")


class Failing(EpochRunner):
    """Fails each epoch with the text of a task's error in an exception of Spark."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        try:
            with Reporting("Operator 'delays'", plan.scope.epoch, step="T2", subtask=0):
                raise self._error
        except Exception as error:  # noqa: BLE001 as Spark does
            raise RuntimeError(f"Job aborted due to stage failure: {error}") from None

    def deltas(self, handle: object) -> tuple[DeltaFile, ...]:
        return ()


def loop_of(
    configuration: Configuration,
    participants: Participants,
    runner: EpochRunner,
    folder: Path,
    orders: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> EpochLoop:
    """A loop at the start of its first attempt. Only direct calls of the queue commit."""
    store, catalog = SnapshotStore(str(folder)), MemoryCatalog(MemoryCatalogState(), 1)
    point = catalog.begin_attempt()
    current = CurrentProgram(program_of(configuration, participants, runner, store=store.url, **orders))
    queue, position, bases = CommitQueue(catalog, current), Position(point.branch, 1, None), PendingBases()
    coordinator = Coordinator(current, catalog, store, queue, position, bases, now=lambda: datetime.now(UTC))
    retention = Retention(store, current, Compaction(store, position, bases, current))

    def no_other_version(order: VersionOrder) -> Program:
        raise AssertionError

    return EpochLoop(
        coordinator=coordinator,
        commits=BackgroundCommits(queue),
        catalog=catalog,
        transactions=TransactionOrders(catalog, queue, []),
        reconfigurations=Reconfigurations(coordinator, queue, retention, catalog, no_other_version, lambda _: None),
        optimizations=Optimizations(catalog, current),
        **options,
    )


def run(loop: EpochLoop) -> None:
    loop.commits.start()
    try:
        loop.run()
    finally:
        loop.commits.stop()


def epochs_that_fail(error: Exception, folder: Path) -> tuple[int, str]:
    """Number of epochs tried, and the type of the attempt's failure."""
    configuration = Configuration(tolerable_failed_epochs=3, epoch_interval_seconds=0)
    source = SimulatedSource(World(SnapshotStore(str(folder)), [(1, 1)]), random.Random(1))
    loop = loop_of(configuration, Participants({"in": source}), Failing(error), folder, sleep=lambda seconds: None)
    with pytest.raises(EpochAborted) as raised:
        loop.run()
    assert isinstance(loop.catalog, MemoryCatalog)
    return len(loop.catalog.state.epochs), failure_of(raised.value).type


def raised_by(error: Exception, cause: Exception | None = None) -> Exception:
    """The error that a task raises for an exception of the author's code."""
    error.__cause__ = cause
    return author_error("Operator 'delays', key (origin='JFK')", error)


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (raised_by(LookupError("no such plane")), "author-error"),
        (MalformedRecord("A record of flights.json does not fit the declared schema."), "malformed-record"),
        (SchemaError("Operator 'delays' gave a string for 'worst'."), "invalid-schema"),
        (SparkLost("Spark's JVM does not answer."), "spark-lost"),
    ],
)
def test_permanent_errors_end_the_attempt_without_a_retry(error: Exception, slug: str, tmp_path: Path) -> None:
    assert epochs_that_fail(error, tmp_path) == (1, slug)


def test_no_epoch_opens_before_an_executor_is_there(tmp_path: Path) -> None:
    came, seen = threading.Event(), []
    executors = ExecutorWait("spark://master:7077", BackgroundTask("executors", lambda: assert_set(came), raises=True))

    def sleep(seconds: float) -> None:
        assert isinstance(loop.catalog, MemoryCatalog)
        seen.append((loop._status().phase, loop._status().detail, len(loop.catalog.state.epochs)))
        if len(seen) == 2:
            came.set()
            executors.first.wait(10)

    source = SimulatedSource(World(SnapshotStore(str(tmp_path)), [(1, 1)]), random.Random(1))
    failing = Failing(SchemaError("the first epoch"))
    loop = loop_of(Configuration(), Participants({"in": source}), failing, tmp_path, sleep=sleep, executors=executors)
    with pytest.raises(EpochAborted, match="the first epoch"):
        loop.run()
    assert [(phase, epochs) for phase, _, epochs in seen] == [("waiting", 0)] * 2
    assert all(str(detail).startswith("waiting for executors since 2") for _, detail, _ in seen)
    assert loop._status().phase == "running"


def assert_set(event: threading.Event) -> None:
    assert event.wait(10)


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (raised_by(ConnectionResetError("reset by peer")), "author-error-transient"),
        (raised_by(ValueError("no answer"), TimeoutError("timed out")), "author-error-transient"),
        (SourceError("flights.json has been deleted."), "source-error"),
        (SinkUnavailable("The broker is unreachable."), "sink-unavailable"),
        (ZeroDivisionError("internal"), "epoch-aborted"),
    ],
)
@pytest.mark.claim("Thesis, 4.5.3")
def test_transient_errors_are_retried_in_the_next_epochs(error: Exception, slug: str, tmp_path: Path) -> None:
    assert epochs_that_fail(error, tmp_path) == (4, slug)


class Alarm(EpochRunner):
    """One operator with a timer: the n-th epoch waits for ``seconds[n]`` after its time, later epochs for none."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = seconds

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        waits = self._seconds[plan.scope.epoch - 1 : plan.scope.epoch]
        due = Due(processing=plan.conditions.epoch_time + int(waits[0] * 1_000_000)) if waits else None
        handle = Handle(owner="alarm", subtask=0, rows=0, bytes=0, payload={"deltas": []}, due=due)
        return Answers({"alarm": [handle]}, [], (), partitions=())

    def deltas(self, handle: object) -> tuple[DeltaFile, ...]:
        return ()


class Quiet(SimulatedSource):
    """A source that never ends after its log."""

    @property
    def ended(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("interval", "waits", "times"),
    [
        (0.0, [10.0], [0.0, 10.0]),
        (60.0, [10.0], [0.0, 60.0]),
        (60.0, [0.0, 10.0], [0.0, 0.0, 60.0]),  # a time left over by the first epoch ignores the interval
    ],
)
def test_due_times_open_epochs_after_the_interval(
    tmp_path: Path, interval: float, waits: list[float], times: list[float]
) -> None:
    world = World(SnapshotStore(str(tmp_path)), [(1, 1)])
    passed = [0.0]
    opened: list[tuple[float, tuple[str, ...]]] = []

    def sleep(seconds: float) -> None:
        assert 0 < seconds <= 0.25
        passed[0] = round(passed[0] + seconds, 6)

    def note(manifest: Manifest) -> None:
        assert manifest.conditions is not None
        opened.append((passed[0], manifest.conditions.opened_for))

    loop = loop_of(
        Configuration(parallelism=1, epoch_interval_seconds=interval),
        Participants({"in": Quiet(world, random.Random(1))}, {"alarm": SimulatedState(world)}),
        Alarm(*waits),
        tmp_path,
        sleep=sleep,
        clock=lambda: passed[0],
        on_epoch=note,
        stop_requested=lambda: passed[0] > 2 * interval + 20,
    )
    start = datetime(2026, 1, 1, tzinfo=UTC)
    loop.coordinator.now = lambda: start + timedelta(seconds=passed[0])
    run(loop)
    assert opened == [(0.0, ("input",)), *((time, ("due",)) for time in times[1:])]


def test_the_meter_records_step_durations_and_idleness(tmp_path: Path) -> None:
    world = World(SnapshotStore(str(tmp_path)), [(1, 1)])
    participants = Participants({"in": Quiet(world, random.Random(1))}, {"alarm": SimulatedState(world)})
    loop = loop_of(Configuration(parallelism=1, epoch_interval_seconds=0), participants, Alarm(), tmp_path)
    meter = loop.commits.queue.meter = loop.coordinator.meter
    loop.stop_requested = lambda: meter.report().moment.idle_at is not None
    run(loop)
    totals = meter.report().totals
    assert {step: durations.count for step, durations in totals.steps.items()} == dict.fromkeys(STEPS, 1)
    (epoch,) = meter.report().epochs
    assert epoch.steps.keys() == set(STEPS) and epoch.steps["E2"] == pytest.approx(totals.steps["E2"].seconds, abs=1e-6)
    assert epoch.parts["spark"] == pytest.approx(epoch.steps["E2"], abs=1e-5) and epoch.parts["store"] > 0
    assert sum(epoch.parts.values()) == pytest.approx(sum(totals.parts.values()), abs=1e-5)
    assert sum(epoch.parts.values()) >= totals.epochs.seconds - 1e-5
    assert totals.epochs.count == 1 and totals.epochs.seconds >= totals.steps["E2"].seconds


def test_pending_query_commands_share_one_epoch_without_input(tmp_path: Path) -> None:
    world = World(SnapshotStore(str(tmp_path)), [(1, 1)])
    opened: list[tuple[str, ...]] = []

    def note(manifest: Manifest) -> None:
        assert manifest.conditions is not None
        opened.append(manifest.conditions.opened_for)
        if len(opened) == 1:
            for number in (1, 2):
                command = QueryCommand(number=number, kind="drop", query=7, by="ada").model_dump()
                catalog.state.directives[str(number)] = Directive(id=str(number), kind="query", arguments=command)

    participants = Participants({"in": Quiet(world, random.Random(1))}, {"alarm": SimulatedState(world)})
    configuration = Configuration(parallelism=1, epoch_interval_seconds=60)
    loop = loop_of(configuration, participants, Alarm(), tmp_path, on_epoch=note)
    assert isinstance(loop.catalog, MemoryCatalog)
    catalog = loop.catalog
    loop.stop_requested = lambda: set(catalog.state.completed) == {"1", "2"}
    run(loop)
    assert opened == [("input",), ("command",)]
    head = loop.coordinator.position.snapshot
    assert head is not None and head.conditions is not None and head.conditions.queries is not None
    assert head.conditions.queries.through == 2


@pytest.mark.parametrize(("commit", "room"), [("asynchronous", 2), ("synchronous", 1)])
def test_synchronous_commits_allow_one_uncommitted_epoch(
    tmp_path: Path, commit: Literal["asynchronous", "synchronous"], room: int
) -> None:
    configuration = Configuration(commit=commit, max_uncommitted_epochs=2)
    coordinator = loop_of(configuration, Participants(), EmptyEpochs(), tmp_path).coordinator
    opened = 0
    while coordinator.commits.has_room:
        coordinator.run_epoch({}, ["command"])
        opened += 1
    assert opened == room
    coordinator.commits.step()
    assert coordinator.commits.has_room


class Bounded(SimulatedSource):
    """A source that ends after its log."""

    bounded = True


@pytest.mark.parametrize(
    ("source", "orders", "drained"),
    [
        (Bounded, {}, True),
        (Bounded, {"drain": False}, False),
        (Bounded, {"available_now": True}, False),
        (SimulatedSource, {}, False),
    ],
)
def test_the_drain_is_the_last_epoch_after_all_input_has_ended(
    tmp_path: Path, source: type[SimulatedSource], orders: dict[str, bool], drained: bool
) -> None:
    world = World(SnapshotStore(str(tmp_path)), [(1, 1)])
    opened: list[tuple[str, ...]] = []

    def note(manifest: Manifest) -> None:
        assert manifest.conditions is not None
        opened.append(manifest.conditions.opened_for)

    participants = Participants({"in": source(world, random.Random(1))}, {"alarm": SimulatedState(world)})
    configuration = Configuration(parallelism=1, epoch_interval_seconds=0)
    loop = loop_of(configuration, participants, Alarm(3600, 3600), tmp_path, orders, on_epoch=note)
    loop.commits.start()
    try:
        loop.run()
        assert opened == [("input",), ("drain",)][: 1 + drained]
        assert loop.coordinator.drained is drained
        world.log.append((2, 2))  # ignored after the drain
        if drained:
            loop.run()
            assert len(opened) == 2
    finally:
        loop.commits.stop()


def test_no_drain_epoch_opens_without_waiting_state(tmp_path: Path) -> None:
    world = World(SnapshotStore(str(tmp_path)), [(1, 1)])
    participants = Participants({"in": Bounded(world, random.Random(1))}, {"alarm": SimulatedState(world)})
    loop = loop_of(Configuration(parallelism=1, epoch_interval_seconds=0), participants, Alarm(), tmp_path)
    run(loop)
    assert loop.coordinator.position.next_epoch == 2
    assert not loop.coordinator.drained
