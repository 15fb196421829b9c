"""Epoch time within an attempt: wall clocks that jump, drift and return, suspensions, and the comparison with the
catalog's clock at the start of an attempt."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.connectors import console, files
from epochal.contracts.catalog import Directive, DriverStatus, RecoveryPoint
from epochal.contracts.conditions import as_datetime, microseconds
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine import clock as clocks
from epochal.engine.clock import SLEW, ClockState, EpochClock, Reading, advanced, deviation_of
from epochal.engine.commits import CommitQueue
from epochal.engine.execution import Hooks, run
from epochal.engine.meter import Meter
from epochal.engine.recovery import Recovery
from epochal.errors import ClockDeviates
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.programs import current_program

SECOND = 1_000_000
HOUR, DAY, YEAR = 3600 * SECOND, 86_400 * SECOND, 365 * 86_400 * SECOND
TOLERANCE = 60 * SECOND
NOON = microseconds(datetime(2026, 1, 1, 12, tzinfo=UTC))


@dataclass
class Machine:
    """The clocks of a machine: ``wall_error`` is the wall clock minus true time."""

    true: int = NOON
    wall_error: int = 0
    origin: int = field(default=12_345 * SECOND)

    @property
    def wall(self) -> int:
        return self.true + self.wall_error

    @property
    def elapsed(self) -> int:
        return self.true - NOON + self.origin

    def reading(self) -> Reading:
        return Reading(self.wall, self.elapsed)

    def clock(self, tolerance_seconds: float = 60.0) -> EpochClock:
        return EpochClock(lambda: tolerance_seconds, lambda: self.wall, lambda: self.elapsed)

    def passes(self, microseconds: int) -> None:
        self.true += microseconds


errors = st.one_of(
    st.just(0),
    st.integers(-2 * TOLERANCE, 2 * TOLERANCE),
    st.integers(-80 * YEAR, 80 * YEAR),
)
passing = st.one_of(
    st.integers(0, 1_000),  # readings in quick succession
    st.integers(0, 10 * SECOND),
    st.integers(0, 400 * DAY),  # a suspension, or a process that was stopped
)
moves = st.lists(st.tuples(passing, errors), max_size=40)


@given(moves)
def test_epoch_time_never_falls_and_stays_within_the_tolerance(moves: list[tuple[int, int]]) -> None:
    machine = Machine()
    state = ClockState.started(machine.reading())
    for passed, error in moves:
        machine.passes(passed)
        machine.wall_error = error
        before, state = state, advanced(state, machine.reading(), TOLERANCE)
        assert state.time >= before.time
        assert abs(state.time - machine.true) <= TOLERANCE
        assert state.ignored == (abs(error) > TOLERANCE) and state.deviation == error
        # Epoch time runs at most 1 % faster or slower than elapsed time.
        assert abs((state.time - before.time) - passed) <= (passed + SECOND) // SLEW


@given(moves, st.integers(-TOLERANCE, TOLERANCE))
def test_epoch_time_reaches_a_wall_clock_within_the_tolerance(moves: list[tuple[int, int]], last: int) -> None:
    machine = Machine()
    state = ClockState.started(machine.reading())
    for passed, error in [*moves, *[(TOLERANCE, last)] * 2 * SLEW]:
        machine.passes(passed)
        machine.wall_error = error
        state = advanced(state, machine.reading(), TOLERANCE)
    assert state.time == machine.wall


@given(st.lists(st.integers(-TOLERANCE, TOLERANCE), max_size=50))
def test_several_small_steps_move_epoch_time_no_further_than_the_tolerance(steps: list[int]) -> None:
    machine = Machine()
    state = ClockState.started(machine.reading())
    for step in steps:
        machine.passes(DAY)
        machine.wall_error += step
        state = advanced(state, machine.reading(), TOLERANCE)
        assert abs(state.time - machine.true) <= TOLERANCE


def test_frequent_readings_follow_the_wall_clock_as_fast_as_rare_ones() -> None:
    often = rarely = ClockState.started(Machine().reading())
    machine = Machine(wall_error=10 * SECOND)
    for _ in range(1_000):
        machine.passes(7)  # less than one microsecond of correction
        often = advanced(often, machine.reading(), TOLERANCE)
    rarely = advanced(rarely, machine.reading(), TOLERANCE)
    assert often.time == rarely.time and often.offset == 7_000 // SLEW


def test_ignored_wall_clock_does_not_cause_one_large_correction() -> None:
    machine = Machine()
    state = ClockState.started(machine.reading())
    machine.wall_error = YEAR
    for _ in range(10):
        machine.passes(DAY)
        state = advanced(state, machine.reading(), TOLERANCE)
    machine.wall_error = TOLERANCE
    machine.passes(SECOND)
    assert advanced(state, machine.reading(), TOLERANCE).time == machine.true + SECOND // SLEW


def test_falling_elapsed_clock_only_stops_epoch_time() -> None:
    machine = Machine()
    state = advanced(ClockState.started(machine.reading()), machine.reading(), TOLERANCE)
    fallen = advanced(state, Reading(NOON, machine.elapsed - HOUR), TOLERANCE)
    assert fallen.time == state.time


def test_suspension_is_no_deviation(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passes(30 * DAY)
    assert clock() == as_datetime(NOON + 30 * DAY)
    assert clock.warning(None) is None and not caplog.records


def test_a_jump_and_its_return_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    with caplog.at_level(logging.WARNING, "epochal"):
        machine.wall_error = 73 * YEAR
        for _ in range(3):
            machine.passes(SECOND)
            clock()
        assert clock() == as_datetime(NOON + 3 * SECOND)
        warning = clock.warning(NOON)
        assert warning is not None and "2,302,128,000 s ahead of" in warning and "stop and start" in warning
        assert clock.report(NOON) == (73 * 365 * 86_400, 0.0)
        machine.wall_error = 0
        machine.passes(SECOND)
        assert clock() == as_datetime(NOON + 4 * SECOND) and clock.warning(NOON) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "back within 60 s" in caplog.records[1].getMessage()


def test_an_upgrade_may_change_the_tolerance() -> None:
    machine, tolerance = Machine(), [60.0]
    clock = EpochClock(lambda: tolerance[0], lambda: machine.wall, lambda: machine.elapsed)
    machine.wall_error = HOUR
    assert clock.warning(None) is not None
    tolerance[0] = 7200.0
    assert clock.warning(None) is None


def test_head_in_the_future_is_a_warning_that_names_the_rollback() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.warning(NOON + TOLERANCE) is None
    warning = clock.warning(NOON + 73 * YEAR)
    assert warning is not None and "2098-12-14 12:00" in warning and "roll back" in warning
    assert clock.report(NOON + HOUR) == (0.0, 3600.0)


@given(st.integers(-YEAR, YEAR), st.integers(0, HOUR), st.floats(0, 1))
def test_clock_deviation_excludes_the_duration_of_the_call(error: int, took: int, at: float) -> None:
    reference = NOON + int(took * at)  # read at some moment of the call
    found = deviation_of(NOON + error, NOON + took + error, reference)
    assert abs(found) <= abs(error) and found * error >= 0
    assert abs(error) - abs(found) <= took


@pytest.mark.parametrize(
    ("wall_error", "starts"),
    [(0, True), (59 * SECOND, True), (-59 * SECOND, True), (-90 * SECOND, False), (HOUR, False)],
)
def test_attempt_with_a_deviating_clock_fails_with_both_times(tmp_path: Path, wall_error: int, starts: bool) -> None:
    class WithClock(MemoryCatalog):
        def begin_attempt(self) -> RecoveryPoint:
            machine.passes(SECOND)
            return super().begin_attempt().model_copy(update={"catalog_time": as_datetime(machine.true)})

    machine = Machine(wall_error=wall_error)
    current = current_program(store=str(tmp_path))
    catalog = WithClock(MemoryCatalogState(), 1)
    store, queue = SnapshotStore(str(tmp_path)), CommitQueue(catalog, current)
    recovery = Recovery(
        current.program, catalog, store, queue, lambda seconds: None, lambda waiting: None, machine.clock()
    )
    if starts:
        assert recovery.run().next_epoch == 1
        return
    with pytest.raises(ClockDeviates) as raised:
        recovery.run()
    for time in (machine.true, machine.wall):
        shown = as_datetime(time)
        assert shown is not None and shown.isoformat(sep=" ", timespec="milliseconds") in raised.value.message


def test_slow_answer_of_the_catalog_is_requested_again(tmp_path: Path) -> None:
    """A call repeated over an outage would hide any deviation shorter than the outage."""
    answers: list[datetime] = []

    class Slow(MemoryCatalog):
        def begin_attempt(self) -> RecoveryPoint:
            machine.passes(SECOND if answers else 2 * HOUR)
            catalog_time = as_datetime(machine.true)
            assert catalog_time is not None
            answers.append(catalog_time)
            return super().begin_attempt().model_copy(update={"catalog_time": catalog_time})

    machine = Machine(wall_error=HOUR)
    current = current_program(store=str(tmp_path))
    catalog = Slow(MemoryCatalogState(), 1)
    store, queue = SnapshotStore(str(tmp_path)), CommitQueue(catalog, current)
    with pytest.raises(ClockDeviates):
        Recovery(
            current.program, catalog, store, queue, lambda seconds: None, lambda waiting: None, machine.clock()
        ).run()
    assert len(answers) == 2


def test_epoch_clock_shows_the_time_of_this_machine() -> None:
    before = datetime.now(UTC)
    found = EpochClock(lambda: 60.0)()
    assert before - timedelta(milliseconds=1) <= found <= datetime.now(UTC) + timedelta(milliseconds=1)
    assert clocks.elapsed_microseconds() <= clocks.elapsed_microseconds()


def test_attempt_uses_its_clock_for_epochs_reports_and_warnings(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Watched(MemoryCatalog):
        def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
            details.append(status.detail or "")
            return super().heartbeat(status)

    def decided(manifest: Manifest) -> None:
        epochs.append(manifest)
        machine.passes(SECOND)
        machine.wall_error = 73 * YEAR

    def run_attempt(number: int, clock: EpochClock | None) -> Meter:
        (tmp_path / "in" / f"{number}-a.json").write_text('{"k": "a"}')
        (tmp_path / "in" / f"{number}-b.json").write_text('{"k": "a"}')
        orders = ExecutionOrders(
            application="clocks",
            execution="one",
            attempt=number,
            artifact="none",
            configuration=Configuration(epoch_interval_seconds=0.0, parallelism=1),
            store=str(tmp_path / "store"),
            cache_directory=str(tmp_path / "cache"),
            available_now=True,
            shadow=True,
        )
        meter = Meter()
        hooks = Hooks(on_epoch=decided, meter=meter, clock=clock)
        run(orders, pipeline.graph(), spark, Watched(state, number), hooks)
        return meter

    (tmp_path / "in").mkdir()
    pipeline = Pipeline("clocks")
    rows = pipeline.read("rows", files.source(str(tmp_path / "in"), format="json", schema="k string", max_files=1))
    rows.key_by("k").aggregate("counts", n="count(*)", ttl="1 hour").write("out", console.sink())
    details: list[str] = []
    epochs: list[Manifest] = []
    machine, state = Machine(true=NOON + 200 * YEAR), MemoryCatalogState()
    meter = run_attempt(1, EpochClock(lambda: 60.0, lambda: machine.wall, lambda: machine.elapsed))
    times = [epoch.clock.epoch_time for epoch in epochs]
    assert times == [NOON + 200 * YEAR, NOON + 200 * YEAR + SECOND]
    assert [epoch.created_at for epoch in epochs] == [as_datetime(time) for time in times]
    assert "Epoch time ignores it" in details[-1] and details[0] == ""
    moment = meter.report().moment
    assert (moment.clock_deviation_seconds, moment.epoch_time_ahead_seconds) == (73 * 365 * 86_400, 0)
    # The next attempt has the clock of this machine, two hundred years earlier.
    caplog.clear()
    meter = run_attempt(2, None)
    assert any("roll back" in record.getMessage() for record in caplog.records) and "roll back" in details[-1]
    assert meter.report().moment.epoch_time_ahead_seconds > 190 * 365 * 86_400
    assert epochs[-1].clock.epoch_time == times[-1]
