"""Measurements of an attempt."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from epochal.connectors.numbered import NumberedSource
from epochal.contracts.handle import Handle
from epochal.contracts.measurements import (
    BOUNDS_SECONDS,
    MOST_EPOCHS,
    DriverReport,
    Durations,
    Load,
    StateSize,
    TaskSeconds,
    Totals,
    Work,
)
from epochal.contracts.source import Backlog, SliceLimits
from epochal.driver.heartbeat import Reports
from epochal.engine import meter as meters
from epochal.engine.load import figures_of, operator_load
from epochal.engine.meter import Meter
from epochal.errors import NotFound
from epochal.tasks.steps import StepClock, TaskAnswer
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.waiting import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Numbers(NumberedSource):
    without_limit = 10
    endless = "no end"
    kind = "numbers"

    def rows(self, spark: Any, start: int, end: int) -> Any: ...

    def schema(self, spark: Any) -> Any: ...


class SettableSource:
    """A source with the backlog that the test sets."""

    def __init__(self) -> None:
        self.left: Backlog = Backlog(records=0)

    def backlog(self) -> Backlog:
        return self.left


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Moments(datetime):
        at = datetime(2026, 1, 1, tzinfo=UTC)

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return cls.at

    monkeypatch.setattr(meters, "datetime", Moments)
    return Moments


def test_a_step_that_fails_is_not_counted() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter.step("E1", before=1.0):
        clock.now += 2
    with pytest.raises(ValueError, match="no"), meter.step("E2"):
        raise ValueError("no")
    assert meter.report().totals.steps == {"E1": durations(3.0)}


def test_steps_of_an_epoch_are_reported_until_a_report_arrives() -> None:
    meter = Meter()
    meter.took("E1", 0.1, 7)
    meter.tasks_took(7, [{"T1": 0.5, "T2": 1.0}, {"T1": 0.25}])
    meter.took("E2", 2.0, 7)
    assert meter.report().epochs == meter.report().epochs  # the first one was lost
    report = meter.report()
    (measured,) = report.epochs
    assert (measured.epoch, measured.steps) == (7, {"E1": 0.1, "E2": 2.0})
    assert measured.tasks == {"T1": TaskSeconds(longest=0.5, total=0.75), "T2": TaskSeconds(longest=1.0, total=1.0)}
    meter.took("E3", 0.3, 7)  # while the report is on its way
    meter.reported(report)
    report = meter.report()
    assert report.epochs[0].steps == {"E1": 0.1, "E2": 2.0, "E3": 0.3}
    meter.reported(report)
    assert meter.report().epochs == ()
    meter.took("E7", 0.7, 7)
    report = meter.report()
    assert report.epochs[0].steps == {"E1": 0.1, "E2": 2.0, "E3": 0.3, "E7": 0.7}
    meter.reported(report)
    meter.took("E7", 0.7, 7)
    assert meter.report().epochs == ()


def test_epochs_of_an_earlier_attempt_are_not_reported() -> None:
    meter = Meter()
    meter.took("E5", 1.0, 3)
    meter.tasks_took(3, [{"T1": 0.5}])
    report = meter.report()
    assert report.epochs == () and report.totals.steps["E5"].count == 1


def test_reports_have_a_bounded_number_of_epochs() -> None:
    meter = Meter()
    for epoch in range(1, 5 * MOST_EPOCHS + 1):
        meter.took("E1", 0.1, epoch)
    seen: list[int] = []
    while (report := meter.report()).epochs:
        assert len(report.epochs) <= MOST_EPOCHS
        seen += [measured.epoch for measured in report.epochs]
        meter.reported(DriverReport.model_validate_json(report.model_dump_json()))
    assert seen == list(range(MOST_EPOCHS + 1, 5 * MOST_EPOCHS + 1))  # the oldest are forgotten


def test_task_answers_carry_step_durations_with_their_handles() -> None:
    files = {"b.parquet": b"1\n2\n", "a.parquet": b"", "c.arrow": b"\n3"}
    handle = Handle(owner="out", subtask=0, rows=1, bytes=2, payload={"text": "one\ntwo"}, carried=files)
    clock = StepClock()
    for step in ("T1", "T2", "T3"):
        clock.ended(step)
    answer = TaskAnswer.decode(clock.answer(handle))
    assert answer.handle == handle and Handle.decode(clock.answer(handle)) == handle.model_copy(update={"carried": {}})
    assert list(answer.seconds) == ["T1", "T2", "T3"] and min(answer.seconds.values()) >= 0
    assert answer.work is None and TaskAnswer.decode(clock.answer(handle, Work(7, 0.5))).work == Work(7, 0.5)
    placed = TaskAnswer.decode(clock.answer(handle, None, "host-1", {"disk": 7}))
    assert (placed.machine, placed.read_bytes, placed.handle) == ("host-1", {"disk": 7}, handle)
    assert TaskAnswer.decode(handle.encode()) == TaskAnswer(
        handle.model_copy(update={"carried": {}}), {}
    )  # a task without measurements
    meter = Meter()
    meter.tasks_took(1, [{"T1": 0.02, "T2": 3.0}, {"T2": 4.0}, {}])
    first = meter.report().totals
    assert first.tasks == {"T1": durations(0.02), "T2": durations(3.0, 4.0)}
    assert (first + first).tasks["T1"] == durations(0.02, 0.02)


def test_busy_time_excludes_waits_for_input_and_output() -> None:
    now = Clock()
    clock = StepClock(now)

    def arriving() -> Iterator[pa.RecordBatch]:
        for rows in (3, 0, 2):
            now.now += 10  # waiting for input
            yield pa.record_batch({"n": list(range(rows))})
        now.now += 10

    now.now += 1
    clock.ended("T1")
    for batch in clock.reading(arriving()):
        now.now += 0.25  # busy
        with clock.waiting():
            now.now += 5 * batch.num_rows
    clock.ended("T2")
    now.now += 2
    clock.ended("T3")
    now.now += 100
    assert clock.work == Work(5, 1 + 3 * 0.25 + 2)


def test_subtask_totals_span_parallelisms_up_to_a_limit() -> None:
    meter = Meter()
    meter.operators_worked(1, 1, 2, {"totals": [Work(10, 0.5), Work(20, 1.5)]})
    meter.operators_worked(2, 2, 3, {"totals": [Work(1, 0.25), Work(1, 0.25), Work(5, 1)]})
    meter.operators_worked(3, 3, 1, {"totals": [Work(100, 2)]})
    first = meter.report().totals
    assert first.subtasks == {"totals": (Work(111, 2.75), Work(21, 1.75), Work(5, 1))}
    read = Totals.model_validate_json(first.model_dump_json())
    assert (read + Totals(subtasks={"totals": (Work(1, 1),), "new": (Work(2, 2),)})).subtasks == {
        "totals": (Work(112, 3.75), Work(21, 1.75), Work(5, 1)),
        "new": (Work(2, 2),),
    }
    meter.operators_worked(4, 4, 998, {"totals": [Work(1, 1)] * 998})
    assert len(meter.report().totals.subtasks["totals"]) == 998
    meter.operators_worked(5, 5, 998, {"more": [Work(1, 1)] * 3})
    assert meter.report().totals.subtasks == {}


def test_rows_of_sources_and_sinks_and_sizes_of_tables_are_reported() -> None:
    now = Clock()
    meter = Meter(now)
    meter.operators_worked(1, 1, 1, {"totals": [Work(9, 1)]}, read={"in": 9}, written={"out": 1})
    for epoch in (2, 3):
        now.now += 5
        meter.operators_worked(epoch, 1, 1, {"totals": [Work(9, 1)]}, read={"in": 9}, written={"out": 2})
    meter.sized(lambda: {"totals": StateSize(rows=3, bytes=70), "late": StateSize(rows=1, bytes=5)})
    moment = meter.report().moment
    assert moment.load is not None
    # The first epoch is not part of the window, as with operators.
    assert (moment.load.rows_read, moment.load.rows_written, moment.load.seconds) == ({"in": 18}, {"out": 4}, 10)
    assert (moment.state_rows, moment.state_bytes) == (4, 75)
    assert moment.tables["totals"] == StateSize(rows=3, bytes=70)


def test_the_load_covers_one_version_in_samples_of_whole_epochs(moments: Any) -> None:
    now, source = Clock(), SettableSource()
    meter = Meter(now)
    assert meter.report().moment.load is None

    def epoch(number: int, seconds: float, busy: float, parallelism: int = 2, behind: int = 0) -> None:
        meter.looked({"in": source})  # type: ignore[dict-item]
        now.now += seconds
        moments.at += timedelta(seconds=seconds)
        meter.operators_worked(
            number, parallelism, parallelism, {"totals": [Work(2, busy)] + [Work()] * (parallelism - 1)}
        )
        source.left = Backlog(records=behind)
        meter.accepted("in", source)  # type: ignore[arg-type]

    epoch(1, 6, 1)
    epoch(2, 6, 2)
    epoch(3, 6, 3)
    epoch(4, 6, 6, behind=5)
    meter.looked({"in": source})  # type: ignore[dict-item]
    load = meter.report().moment.load
    assert load is not None and (load.version, load.parallelism, load.epoch) == (2, 2, 4)
    # The first epoch began before its version was known.
    assert load.samples == ((12.0, 5.0, 0.0, round(5 / 12 / 2, 6)),)
    assert load.seconds == 18 and load.busy_share == round(11 / 18 / 2, 4)
    assert (load.operators["totals"].rows, load.operators["totals"].busy_seconds) == (6, 11)
    assert (load.operators["totals"].epoch_rows, load.operators["totals"].epoch_busy_seconds) == (2, 6)
    now.now += 30  # no input
    moments.at += timedelta(seconds=30)
    meter.looked({"in": source})  # type: ignore[dict-item]
    load = meter.report().moment.load
    assert load is not None and load.samples[1][:2] == (36.0, 6.0) and load.samples[1].lag_seconds is not None
    assert load.samples[1].lag_seconds >= 30 and Load.model_validate_json(load.model_dump_json()) == load
    epoch(5, 1, 0.5, parallelism=3)
    load = meter.report().moment.load
    assert load is not None and (load.parallelism, load.samples, load.operators["totals"].rows) == (3, (), 0)
    assert load.operators["totals"].epoch_rows == 2


@pytest.mark.parametrize(
    ("rows", "busy", "skewed", "straggling"),
    [
        ([500, 500], [3.0, 3.1], False, []),
        ([500, 500], [3.0, 6.5], False, [1]),
        ([600, 490], [6.5, 3.0], False, [0]),  # nearly equal numbers of rows
        ([900, 300], [9.0, 3.0], True, []),  # explained by its rows
        ([90, 30], [9.0, 3.0], False, []),  # too few rows
        ([500, 500], [0.2, 0.9], False, []),  # too short
        ([500, 500, 500, 500], [2.0, 2.0, 9.0, 8.0], False, [2, 3]),
        ([5000, 500, 500, 500], [20.0, 2.0, 9.0, 2.0], True, [2]),
        ([5000], [100.0], False, []),
        ([0, 0], [0.0, 0.0], False, []),
    ],
)
@pytest.mark.claim("SDG, 3.3, stragglers")
def test_skew_and_stragglers_are_detected(
    rows: list[int], busy: list[float], skewed: bool, straggling: list[int]
) -> None:
    figures = figures_of([Work(*one) for one in zip(rows, busy, strict=True)])
    found = operator_load(figures, None)
    assert found.skewed == skewed
    assert [one.subtask for one in found.stragglers] == straggling
    if sum(rows):
        assert found.largest is not None and found.largest.rows == max(rows)
        assert found.skew == pytest.approx(max(rows) * len(rows) / sum(rows), abs=0.001)
    else:
        assert found.largest is None and found.skew is None


def test_totals_of_attempts_add_up() -> None:
    meter = Meter()
    meter.committed("out", 0.02)
    meter.compacted(7.0)
    meter.compacted(None)
    meter.published(700.0)
    first = meter.report().totals
    meter.took("E4", 0.3)
    both = first + meter.report().totals
    assert both.sinks == {"out": durations(0.02, 0.02)} and both.steps == {"E4": durations(0.3)}
    assert both.compactions == durations(7.0, 7.0) and both.failed_compactions == 2
    assert both.epochs == durations(700.0, 700.0) and both.epochs.counts[-1] == 2


def test_reports_of_newer_versions_are_read() -> None:
    text = Meter().report().model_dump_json().replace('"number":1', '"number":1,"novelty":{"of":2}')
    assert DriverReport.model_validate_json(text).number == 1
    with pytest.raises(ValueError, match="15 counts"):
        Durations(counts=(1, 2))
    assert Totals() + Totals() == Totals()


def test_lag_counts_from_the_time_when_all_input_was_read(moments: Any) -> None:
    meter, source = Meter(), SettableSource()
    start = moments.at

    def looked(seconds: int, left: int) -> None:
        moments.at, source.left = start + timedelta(seconds=seconds), Backlog(records=left)
        meter.looked({"in": source})  # type: ignore[dict-item]

    def took(left: int) -> None:
        source.left = Backlog(records=left)
        meter.accepted("in", source)  # type: ignore[arg-type]

    def read_until() -> float | None:
        (source,) = meter.report().moment.sources.values()
        return None if source.read_until is None else (source.read_until - start).total_seconds()

    looked(0, 100)
    assert read_until() is None  # the waiting time of the first hundred is unknown
    looked(10, 150)
    took(60)  # ninety
    assert read_until() is None
    took(40)
    assert read_until() == 0  # the first hundred are read, the arrivals by 10 s are not
    looked(20, 40)
    took(0)
    assert read_until() == 20  # no other record had arrived by then
    looked(30, 0)
    assert read_until() == 30
    looked(40, 5)
    assert read_until() == 30 and meter.report().moment.sources["in"].is_behind


def test_a_backlog_that_never_shrinks_needs_bounded_memory(moments: Any) -> None:
    meter, source = Meter(), SettableSource()
    start = moments.at
    for second in range(5000):
        moments.at, source.left = start + timedelta(seconds=second), Backlog(files=second + 1)
        meter.looked({"in": source})  # type: ignore[dict-item]
    assert len(meter._readings["in"].marks) <= 513
    source.left = Backlog(files=2500)  # half of the files were read
    meter.accepted("in", source)  # type: ignore[arg-type]
    known = meter.report().moment.sources["in"].read_until
    assert known is not None and start + timedelta(seconds=2300) <= known <= start + timedelta(seconds=2500)


def test_an_attempt_is_not_idle_while_a_source_is_unreachable(moments: Any) -> None:
    meter, source = Meter(), SettableSource()
    source.left = Backlog(records=0)
    meter.looked({"in": source}, {"in"})  # type: ignore[dict-item]
    meter.idle()
    assert meter.report().moment.idle_at is None and not meter.report().moment.sources["in"].reachable
    meter.looked({"in": source})  # type: ignore[dict-item]
    meter.idle()
    assert meter.report().moment.idle_at == moments.at


class ReportCatalog(MemoryCatalog):
    """Accepts all reports except the first one."""

    accepted: ClassVar[list[DriverReport]] = []
    calls = 0

    def report(self, report: DriverReport) -> None:
        self.calls += 1
        if self.calls == 1:
            raise NotFound("There is nothing at this path.")
        self.accepted.append(report)


def test_reports_continue_after_a_refusal_and_end_with_a_last_one() -> None:
    catalog, meter = ReportCatalog(MemoryCatalogState(), 1), Meter()
    reports = Reports(catalog, meter, interval_seconds=0.001)
    reports.start()
    eventually(lambda: len(catalog.accepted) >= 2)
    meter.took("E2", 4.0)
    reports.stop()
    assert catalog.accepted[-1].totals.steps == {"E2": durations(4.0)}
    numbers = [report.number for report in catalog.accepted]
    assert numbers == sorted(set(numbers)) and numbers[0] > 1


def test_numbered_sources_report_their_backlog() -> None:
    clock = Clock()
    rated = Numbers(rate=10.0, clock=clock)
    assert rated.backlog() == Backlog()
    rated.plan(SliceLimits(max_records=None))
    clock.now += 5
    slice = rated.plan(SliceLimits(max_records=20))
    assert slice is not None and rated.backlog() == Backlog(records=50)
    rated.accept(slice)
    clock.now += 5
    assert rated.backlog() == Backlog(records=30)  # as of the plan
    assert Numbers(bound=7).backlog() == Backlog(records=7) and Numbers().backlog() == Backlog()


def durations(*seconds: float) -> Durations:
    counts = [0] * (len(BOUNDS_SECONDS) + 1)
    for one in seconds:
        counts[sum(bound < one for bound in BOUNDS_SECONDS)] += 1
    return Durations(counts=tuple(counts), seconds=sum(seconds))
