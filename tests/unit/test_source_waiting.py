"""Waiting for sources whose external systems do not answer: no epoch and no attempt counts as failed, and epochs
continue with the other sources."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.contracts.catalog import Directive, DriverStatus, Failure
from epochal.contracts.configuration import Configuration
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.job import Participants
from epochal.engine.loop import EpochLoop
from epochal.engine.source_wait import SourceAway, SourceWait
from epochal.engine.store_wait import StoreAway, until_answered
from epochal.errors import EpochAborted, SourceError, SourceUnavailable, StoreUnavailable
from epochal.snapshots.store import SnapshotStore
from epochal.tasks.reporting import as_failure
from tests.kit.simulation.pipeline import SimulatedSource, SimulatedState, World
from tests.unit.test_engine_loop import loop_of, run
from tests.unit.test_store_waiting import FailingAtFirst, StoreOutage, Time

AWAY = SourceUnavailable("Kafka at broker:9092: No broker there answers.")
UNCOUNTED = Configuration(parallelism=1, epoch_interval_seconds=0, tolerable_failed_epochs=0)


class SilentSource(SimulatedSource):
    """Does not answer the first ``silent`` plans."""

    silent = 0

    def plan(self, limits: SliceLimits) -> Slice | None:
        if self.silent > 0:
            self.silent -= 1
            raise AWAY
        return super().plan(limits)


def source_of(folder: Path, silent: int = 0) -> SilentSource:
    source = SilentSource(World(SnapshotStore(str(folder)), [(1, 1)]), random.Random(1))
    source.silent = silent
    return source


def statuses_of(loop: EpochLoop) -> list[DriverStatus]:
    """The statuses that the loop will report."""
    statuses: list[DriverStatus] = []
    heartbeat = loop.transactions.heartbeat

    def noted(status: DriverStatus) -> Sequence[Directive]:
        statuses.append(status)
        return heartbeat(status)

    loop.transactions.heartbeat = noted  # type: ignore[method-assign]
    return statuses


def test_epochs_whose_tasks_cannot_read_a_source_do_not_count_as_failed(tmp_path: Path) -> None:
    """Nine outages in a row, although no failed epoch is tolerated; the slice of the aborted epochs is committed."""
    source, time = source_of(tmp_path), Time()
    participants = Participants({"in": source}, {"alarm": SimulatedState(source._world)})
    runner = FailingAtFirst(*[AWAY] * 9)
    loop = loop_of(UNCOUNTED, participants, runner, tmp_path, sleep=time.sleep, clock=time, epochs_limit=1)
    loop.coordinator.source_wait.clock = time
    statuses = statuses_of(loop)
    run(loop)
    head = loop.coordinator.position.snapshot
    assert head is not None and "in" in head.slices and head.key.epoch == 10
    waiting = [status.detail for status in statuses if status.phase == "waiting"]
    assert len(waiting) >= 9 and all("waiting for source 'in' since" in str(detail) for detail in waiting)
    assert loop.coordinator.source_wait.away == []
    assert 2.0 < time.now < 9 * 2.0


def test_epochs_continue_without_a_source_that_does_not_answer(tmp_path: Path) -> None:
    silent, other, time = source_of(tmp_path, silent=3), source_of(tmp_path), Time()
    participants = Participants({"silent": silent, "other": other}, {"alarm": SimulatedState(other._world)})
    loop = loop_of(UNCOUNTED, participants, FailingAtFirst(), tmp_path, sleep=time.sleep, clock=time, epochs_limit=2)
    statuses, read = statuses_of(loop), list[set[str]]()
    loop.on_epoch = lambda manifest: read.append(set(manifest.slices))
    run(loop)
    assert read == [{"other"}, {"silent"}]
    details = [status.detail for status in statuses if status.phase == "waiting"]
    assert details and all("waiting for source 'silent' since" in str(detail) for detail in details)
    reports = loop.coordinator.meter.report().moment.sources
    assert reports["silent"].reachable and reports["other"].reachable


def test_other_failures_of_sources_count(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    participants = Participants({"in": source}, {"alarm": SimulatedState(source._world)})
    loop = loop_of(UNCOUNTED, participants, FailingAtFirst(SourceError("no such folder")), tmp_path)
    with pytest.raises(EpochAborted, match="no such folder"):
        run(loop)


def test_a_source_is_named_only_if_the_epoch_read_no_other(tmp_path: Path) -> None:
    time = Time()
    wait = SourceWait(time)
    assert not wait.explains(Failure(type="source-error", message="x"), ["in"])
    assert wait.explains(as_failure(AWAY), ["in"]) and wait.names == {"in"} and wait.seconds() == pytest.approx(0.1)
    assert wait.explains(as_failure(AWAY), ["in", "other"]) and wait.names == frozenset()
    assert str(wait.away[0]).startswith("waiting for a source since ") and wait.seconds() == pytest.approx(0.2)
    assert wait.plan({"in": source_of(tmp_path, silent=1)}, SliceLimits(None)) == {} and wait.names == {"in"}
    wait.worked()  # an epoch of other sources
    assert [each.name for each in wait.away] == ["in"] and wait.seconds() == 0.0


def test_the_beginning_of_an_attempt_is_repeated_until_sources_and_store_answer(tmp_path: Path) -> None:
    time, notes = Time(), list[Sequence[StoreAway | SourceAway]]()
    errors: list[Exception] = [AWAY, StoreUnavailable("The store s3://bucket does not answer."), AWAY]

    def begin() -> int:
        if errors:
            raise errors.pop(0)
        return 3

    store = StoreOutage(str(tmp_path), failing_probes=5)
    assert until_answered(begin, store, time.sleep, notes.append, time) == 3
    reported = {type(each) for note in notes for each in note}
    assert reported == {SourceAway, StoreAway} and notes[-1] == []
