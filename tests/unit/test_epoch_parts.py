"""The parts of an epoch's time: not negative, add up to it, and tasks that run in parallel share the slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.contracts.handle import Handle
from epochal.contracts.measurements import EpochPart, TaskStep, Totals, Work
from epochal.engine.epoch_parts import EpochTime, JobTime, in_parallel, job_time
from epochal.engine.meter import Meter
from epochal.tasks.steps import TaskAnswer

PARTS: tuple[EpochPart, ...] = get_args(EpochPart)
SECONDS = st.floats(0, 1e6) | st.integers(0, 8).map(float)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def answer(owner: str, subtask: int = 0, busy: float = 0.0, **steps: float) -> TaskAnswer:
    found: dict[TaskStep, float] = {step: steps[step] for step in ("T1", "T2", "T3") if step in steps}
    handle = Handle(owner=owner, subtask=subtask, rows=0, bytes=0, payload={})
    return TaskAnswer(handle, found, Work(1, busy))


def operator(subtask: int, store: float, python: float, waited: float = 0.0) -> TaskAnswer:
    return answer("totals", subtask, store + python, T1=store / 4, T2=python + waited, T3=store * 3 / 4)


@given(
    before=SECONDS,
    seconds=SECONDS,
    job=SECONDS,
    planning=SECONDS,
    tasks=st.dictionaries(st.sampled_from(["python", "store", "sink"]), SECONDS),
    stored=SECONDS,
    in_sinks=SECONDS,
)
def test_parts_are_not_negative_and_add_up_to_the_epoch_for_any_measurements(
    before: float,
    seconds: float,
    job: float,
    planning: float,
    tasks: Mapping[EpochPart, float],
    stored: float,
    in_sinks: float,
) -> None:
    parts = EpochTime(before, stored, JobTime(planning, tasks)).parts(seconds, job, in_sinks)
    assert set(parts) == set(PARTS) and min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(before + seconds, rel=1e-9, abs=1e-9)
    if planning + sum(tasks.values()) <= job <= before + seconds:  # consistent measurements are not scaled
        assert parts["planning"] == planning and parts["python"] == tasks.get("python", 0.0)
        if stored + in_sinks <= before + seconds - job:
            assert parts["store"] == pytest.approx(tasks.get("store", 0.0) + stored)
            assert parts["sink"] == pytest.approx(tasks.get("sink", 0.0) + in_sinks)


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=8), st.integers(1, 8))
def test_tasks_take_as_long_as_the_longest_or_as_all_of_them_on_the_slots(
    found: Sequence[tuple[float, float]], slots: int
) -> None:
    tasks: list[Mapping[EpochPart, float]] = [{"python": python, "store": store} for python, store in found]
    parts = in_parallel(tasks, slots)
    together, longest = sum(map(sum, found)), max(map(sum, found), default=0.0)
    took = sum(parts.values())
    assert took == pytest.approx(max(longest, together / slots))
    assert took <= together * (1 + 1e-9)
    for index, part in enumerate(("python", "store")):
        assert parts.get(part, 0.0) * together == pytest.approx(took * sum(each[index] for each in found))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (1, {"python": 8.0, "store": 4.0}),  # one after the other
        (2, {"python": 4.0, "store": 2.0}),
        (4, {"python": 2.0, "store": 1.0}),
        (64, {"python": 2.0, "store": 1.0}),  # the longest of them
    ],
)
def test_subtasks_of_an_operator_share_the_slots(slots: int, expected: dict[EpochPart, float]) -> None:
    subtasks = [operator(subtask, store=1.0, python=2.0, waited=50.0) for subtask in range(4)]
    assert job_time(0.5, {"totals": subtasks}, [], [], {}, slots) == JobTime(0.5, expected)


def test_one_long_subtask_is_not_divided_by_the_slots() -> None:
    subtasks = [operator(0, store=0.0, python=9.0), operator(1, store=0.0, python=1.0)]
    assert job_time(0.0, {"totals": subtasks}, [], [], {}, 4).tasks["python"] == 9.0


def test_operators_maps_sinks_and_loops_are_added_by_their_part() -> None:
    operators = {"totals": [operator(0, 1.0, 2.0)], "joined": [operator(0, 0.25, 4.0)]}
    written = [
        answer("totals", 0, 3.0, T1=1.0, T2=7.0, T3=1.0),  # a sink with the name of an operator
        answer("loop retries", 0, 0.5),
        TaskAnswer(Handle(owner="rejected", subtask=0, rows=0, bytes=0, payload={}), {}),  # dead letters
    ]
    found = job_time(0.0, operators, written, ["totals", "rejected"], {"map_arrow(f)": [0.5, 1.5]}, 2)
    assert found.tasks == {"python": 7.5, "store": 1.75, "sink": 3.0}


def test_parts_of_tasks_are_scaled_to_the_job() -> None:
    """Two operators without a shuffle between them run at the same time, so that their sum may exceed the job."""
    time = EpochTime(job=JobTime(1.0, {"python": 6.0, "sink": 2.0}))
    assert time.parts(6.0, 5.0, 0.5) == {
        "planning": 1.0,
        "spark": 0.0,
        "python": 3.0,
        "store": 0.0,
        "sink": 1.5,
        "protocol": 0.5,
    }


def test_the_meter_divides_each_published_epoch() -> None:
    clock = Clock()
    meter = Meter(clock)

    def epoch(number: int) -> None:
        began = clock.now
        with meter.step("E1", number, before=0.25):
            clock.now += 0.5
        with meter.storing(number):
            clock.now += 0.125
        with meter.step("E2", number):
            clock.now += 8.0
        meter.job_ran(number, JobTime(1.0, {"python": 4.0, "store": 1.0, "sink": 0.5}))
        with meter.step("E4", number):
            clock.now += 0.25
            with meter.storing(number):
                clock.now += 2.0
        clock.now += 3.0
        meter.took("E5", 3.0, number)
        with meter.step("E6", number):
            clock.now += 0.5
        if number == 1:
            assert meter.report().epochs[0].parts == {} and meter.report().totals.parts == {}
        meter.published(clock.now - began, number, in_sinks=2.5)

    expected = {"planning": 1.0, "spark": 1.5, "python": 4.0, "store": 3.125, "sink": 3.0, "protocol": 2.0}
    epoch(1)
    report = meter.report()
    assert report.epochs[0].parts == expected and sum(expected.values()) == clock.now + 0.25
    assert report.totals.epochs.seconds == clock.now
    meter.reported(report)
    epoch(2)
    report = meter.report()
    assert {measured.epoch: measured.parts for measured in report.epochs} == {2: expected}
    twice = {part: 2 * seconds for part, seconds in expected.items()}
    assert report.totals.parts == twice
    assert (report.totals + Totals(parts={"spark": 1.0})).parts == twice | {"spark": 4.0}


def test_epochs_of_earlier_attempts_and_aborted_epochs_have_no_parts() -> None:
    meter = Meter(Clock())
    meter.took("E5", 1.0, 3)
    meter.job_ran(3, JobTime(1.0))
    meter.published(2.0, 3)
    with meter.step("E1", 4):
        pass
    with pytest.raises(ValueError, match="no"), meter.storing(4):
        raise ValueError("no")
    totals = meter.report().totals
    assert totals.parts == {} and totals.epochs.count == 1
    assert meter.report().epochs[0].parts == {}
