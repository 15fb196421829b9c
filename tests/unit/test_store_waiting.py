"""Waiting for a snapshot store that does not answer: no epoch and no attempt counts as failed, and processes that start
wait."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from epochal.contracts.catalog import Directive, DriverStatus, Failure
from epochal.contracts.configuration import Configuration
from epochal.engine.job import Answers, EpochPlan, Participants
from epochal.engine.source_wait import SourceAway
from epochal.engine.store_wait import PROBE_SECONDS, StoreAway, StoreWait, until_answered
from epochal.errors import (
    EnvironmentProblem,
    EpochAborted,
    EpochTimeout,
    SinkUnavailable,
    StoreRefuses,
    StoreUnavailable,
)
from epochal.service.domain.executions import SupervisedAttempt, SupervisedExecution
from epochal.service.domain.supervision import EndExecution, Launch, Process, SupervisionSettings, decide
from epochal.service.runtime.store_claim import when_available
from epochal.snapshots.store import SnapshotStore
from epochal.tasks.reporting import as_failure
from epochal.wire.configuration import RestartStrategy
from tests.kit.simulation.pipeline import SimulatedSource, SimulatedState, World
from tests.unit.test_engine_loop import Alarm, loop_of, run

AWAY = StoreUnavailable("The store s3://bucket does not answer.")


class StoreOutage(SnapshotStore):
    """A store that is away until a number of probes have failed. ``probes``: number of probes so far."""

    def __init__(self, url: str, failing_probes: int, error: StoreUnavailable = AWAY) -> None:
        super().__init__(url)
        self.left = failing_probes
        self.probes = 0
        self.error = error

    def probe(self) -> None:
        self.probes += 1
        if self.left > 0:
            self.left -= 1
            raise self.error


class FailingAtFirst(Alarm):
    """Fails the first epochs with an error."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        if self.errors:
            raise self.errors.pop(0)
        return super().run(plan, timeout_seconds)


class Time:
    """A clock that only ``sleep`` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < PROBE_SECONDS + 0.001
        self.now += seconds


@pytest.mark.parametrize(
    "errors",
    [
        [AWAY] * 9,
        [StoreRefuses("The store s3://bucket refuses requests: AccessDenied.")] * 9,
        [EpochTimeout("Epoch main/1 took longer than 60 s.")],
    ],
)
def test_epochs_that_the_store_aborts_do_not_count_as_failed(tmp_path: Path, errors: list[Exception]) -> None:
    """Nine outages in a row, although no failed epoch is tolerated; the slice of the aborted epochs is committed."""
    world = World(SnapshotStore(str(tmp_path)), [(1, 1)])
    source = SimulatedSource(world, random.Random(1))
    statuses: list[DriverStatus] = []
    time = Time()
    loop = loop_of(
        Configuration(parallelism=1, epoch_interval_seconds=0, tolerable_failed_epochs=0),
        Participants({"in": source}, {"alarm": SimulatedState(world)}),
        FailingAtFirst(*errors),
        tmp_path,
        sleep=time.sleep,
        clock=time,
        epochs_limit=1,
    )
    heartbeat = loop.transactions.heartbeat

    def noted(status: DriverStatus) -> Sequence[Directive]:
        statuses.append(status)
        return heartbeat(status)

    loop.transactions.heartbeat = noted  # type: ignore[method-assign]
    outage = loop.store_wait.store = StoreOutage(str(tmp_path), failing_probes=5)
    run(loop)
    head = loop.coordinator.position.snapshot
    assert head is not None and head.counts.rows_in == 0 and "in" in head.slices
    assert outage.probes >= 6
    waiting = [status for status in statuses if status.phase == "waiting"]
    assert waiting and all("waiting for the store since" in str(status.detail) for status in waiting)
    assert loop.store_wait.away is None


def test_other_failures_count_although_the_store_answers(tmp_path: Path) -> None:
    world = World(SnapshotStore(str(tmp_path)), [(1, 1)])
    loop = loop_of(
        Configuration(parallelism=1, epoch_interval_seconds=0, tolerable_failed_epochs=1),
        Participants({"in": SimulatedSource(world, random.Random(1))}, {"alarm": SimulatedState(world)}),
        FailingAtFirst(*[EpochTimeout("slow")] * 2),
        tmp_path,
    )
    with pytest.raises(EpochAborted, match="slow"):
        run(loop)


def test_pauses_grow_to_the_limit_until_an_epoch_is_decided(tmp_path: Path) -> None:
    """A store that answers probes and refuses writes is not written to in a tight loop."""
    time = Time()
    wait = StoreWait(StoreOutage(str(tmp_path), failing_probes=0), time)
    pauses = []
    for _ in range(8):
        wait.lost("refused")
        pauses.append(round(wait.seconds(), 6))
        time.now += wait.seconds() + 1e-9
        assert wait.seconds() == 0.0 and wait.away is None
    assert pauses == sorted(pauses) and pauses[0] == 0.1 and pauses[-1] == PROBE_SECONDS
    wait.worked()
    wait.lost("refused")
    assert wait.seconds() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("failure", "explained"),
    [(AWAY, True), (StoreRefuses("refused"), True), (EpochTimeout("slow"), True), (SinkUnavailable("broker"), False)],
)
def test_only_failures_of_the_store_and_timeouts_are_explained(
    tmp_path: Path, failure: EpochAborted | StoreUnavailable, explained: bool
) -> None:
    wait = StoreWait(StoreOutage(str(tmp_path), failing_probes=1))
    assert wait.explains(as_failure(failure)) is explained
    assert (wait.away is not None) is explained
    assert not wait.explains(Failure(type="unknown-slug", message="x"))


def test_the_beginning_of_an_attempt_is_repeated_until_the_store_answers(tmp_path: Path) -> None:
    time, notes = Time(), list[Sequence[StoreAway | SourceAway]]()
    results: list[Callable[[], int]] = [lambda: _raise(AWAY), lambda: _raise(AWAY), lambda: 3]
    store = StoreOutage(str(tmp_path), failing_probes=20)
    assert until_answered(lambda: results.pop(0)(), store, time.sleep, notes.append, time) == 3
    assert len([note for note in notes if note]) >= 20 and notes[-1] == []


def test_other_errors_of_the_beginning_are_raised(tmp_path: Path) -> None:
    store = StoreOutage(str(tmp_path), failing_probes=1)
    with pytest.raises(SinkUnavailable):
        until_answered(lambda: _raise(SinkUnavailable("broker")), store, lambda seconds: None, lambda away: None)


def _failure(slug: str) -> Failure:
    return Failure(type=slug, message="x")


def _raise(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(
    ("slug", "decision"),
    [("store-unavailable", Launch), ("source-unavailable", Launch), ("epoch-aborted", EndExecution)],
)
def test_attempts_that_an_outage_ends_use_up_no_restart(slug: str, decision: type) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    attempts = tuple(
        SupervisedAttempt(
            number,
            "failed",
            None,
            True,
            now - timedelta(60),
            now - timedelta(seconds=60),
            Failure(type=slug, message="x"),
        )
        for number in range(1, 20)
    )
    execution = SupervisedExecution("e", "flights", "running", RestartStrategy(max_restarts=3), None, None, attempts)
    found = decide(execution, Process.GONE, now, now, SupervisionSettings())
    assert isinstance(found, decision)


def test_start_waits_until_the_store_answers() -> None:
    pauses: list[float] = []
    failures = [StoreUnavailable("The store s3://b is not available.")] * 30

    def work() -> None:
        if failures:
            raise failures.pop()

    when_available(work, pauses.append)
    assert len(pauses) == 30 and failures == []
    assert max(pauses) == 4.0


def test_start_ends_where_the_store_refuses_requests() -> None:
    def work() -> None:
        raise StoreRefuses("The store s3://b refuses requests: NoSuchBucket.")

    with pytest.raises(EnvironmentProblem, match=r"NoSuchBucket.*or name another one"):
        when_available(work)


def test_waiting_ends_with_the_process() -> None:
    over = threading.Event()
    tried: list[int] = []

    def work() -> None:
        tried.append(1)
        over.set()
        raise StoreUnavailable("The store s3://b is not available.")

    when_available(work, over.wait)
    assert tried == [1]
