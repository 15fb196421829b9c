"""Stragglers: subtasks that are slow for a while, and their move to another machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from epochal.client.models import Placement as Answer
from epochal.contracts.measurements import SAMPLE_SECONDS, PlacementReport, StragglerMove, Work
from epochal.engine.least_moves import Placement
from epochal.engine.load import WINDOW_SAMPLES, RecentLoad
from epochal.engine.meter import Meter
from epochal.engine.placement import Placements, Requirements, SlotFrame, Slots
from tests.unit.test_machines import drawn

EPOCHS = 5
"""Epochs of a sample."""


class Runs:
    """A load whose epochs take a fifth of a sample. The first one, which does not count, has run."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.load = RecentLoad(lambda: self.seconds)
        self.load.ran(1, 1, 4, {"totals": [Work()] * 4})

    def run(self, busy: Sequence[float], samples: int = 1) -> None:
        for epoch in range(samples * EPOCHS):
            self.seconds += SAMPLE_SECONDS / EPOCHS
            self.load.ran(2 + epoch, 1, 4, {"totals": [Work(100, each) for each in busy]})
            self.load.between_epochs(lambda: None)


def test_a_subtask_that_is_slow_for_a_full_window_is_lasting() -> None:
    runs = Runs()
    for _ in range(WINDOW_SAMPLES - 1):
        runs.run([0.1, 0.1, 0.5, 0.1])
        assert runs.load.lasting_stragglers == {}
    runs.run([0.1, 0.1, 0.5, 0.1])
    assert runs.load.lasting_stragglers == {"totals": [2]}


def test_a_subtask_that_was_slow_once_is_not_lasting() -> None:
    runs = Runs()
    runs.run([0.1, 0.1, 0.1, 0.1], samples=WINDOW_SAMPLES - 1)
    runs.run([0.1, 0.1, 4.0, 0.1])
    report = runs.load.report()
    assert report is not None and [each.subtask for each in report.operators["totals"].stragglers] == [2]
    assert runs.load.lasting_stragglers == {}


class SlotsOfTwoMachines(Slots):
    """Slots without Spark: two on machine ``a``, two on ``b``."""

    def __init__(self, *machines: str) -> None:
        super().__init__(SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=4)), None)  # type: ignore[arg-type]
        self.machines = machines or ("a", "a", "b", "b")
        self.restored: list[dict[int, list[tuple[int, int]]]] = []
        self.impossible = None
        self.machines_now = self.machines

    def _compute(self, cores: int, parallelism: int) -> SlotFrame:
        frame: Any = SimpleNamespace(unpersist=lambda: None)
        return SlotFrame(frame, frame, cores, self.machines)

    def _machines_of(self, frame: Any) -> tuple[str, ...]:
        return self.machines_now

    def _restore(self, computed: SlotFrame, required: Requirements, placements: Placements) -> None:
        self.restored.append(required.moving(placements))


def required(placement: Placement | None = None, slow: Sequence[int] = (), **more: Any) -> Requirements:
    before = {} if placement is None else {each: placement.machine(each) for each in range(len(placement.slots))}
    number = 4 if placement is None else len(placement.slots)
    given: dict[str, Any] = {"epoch": 7, "pinned": False, **more}
    return Requirements(
        before={number: before}, scopes=lambda *_: (), stragglers=[(number, each, "totals") for each in slow], **given
    )


def moved(slots: Slots, placement: Placement, slow: Sequence[int], **more: Any) -> Placement:
    """The placement after a move has been prepared and taken."""
    slots.placements(required(placement, slow, **more))
    if slots._preparation is not None:
        assert slots._preparation.wait(10)
    (found,) = slots.placements(required(placement, slow, **more)).values()
    return found


def test_a_straggler_is_exchanged_once_and_its_peer_stays() -> None:
    slots = SlotsOfTwoMachines()
    (first,) = slots.placements(required()).values()
    assert [first.machine(each) for each in range(4)] == ["a", "a", "b", "b"]
    second = moved(slots, first, [1], epoch=9)
    assert [second.machine(each) for each in range(4)] == ["a", "b", "a", "b"]
    assert slots.restored == [{2: [(4, 1)], 1: [(4, 2)]}]
    assert slots.moved_stragglers == [
        StragglerMove(operator="totals", subtask=1, epoch=9, origin="a", destination="b", exchanged_with=2)
    ]
    assert moved(slots, second, [1, 2]) == second and len(slots.moved_stragglers) == 1


def test_a_straggler_takes_a_free_slot_of_a_machine_with_fewer_subtasks() -> None:
    slots = SlotsOfTwoMachines()
    (first,) = slots.placements(required(Placement((0, 1, 2), ("a", "a", "b", "b")))).values()
    second = moved(slots, first, [0])
    assert [second.machine(each) for each in range(3)] == ["b", "a", "b"]
    assert slots.moved_stragglers[0].exchanged_with is None


@pytest.mark.parametrize("machines", [("a", "a", "a", "b"), ("a", "a", "b", "b")])
def test_nothing_moves_where_no_other_subtask_may_be_exchanged(machines: tuple[str, ...]) -> None:
    slots = SlotsOfTwoMachines(*machines)
    (first,) = slots.placements(required()).values()
    assert moved(slots, first, range(4)) == first and slots.moved_stragglers == []


def test_subtasks_with_state_that_is_only_cached_never_move() -> None:
    slots = SlotsOfTwoMachines()
    (first,) = slots.placements(required(pinned=True)).values()
    assert moved(slots, first, [1], pinned=True) == first and slots.restored == []


def test_a_move_is_dropped_if_slots_have_moved_meanwhile() -> None:
    slots = SlotsOfTwoMachines()
    (first,) = slots.placements(required()).values()
    slots.placements(required(first, [1]))
    slots.ran(4, {0: "b"})
    assert moved(slots, first, []) == first and slots.moved_stragglers == []


def test_slots_of_a_lost_executor_are_spread_again() -> None:
    slots = SlotsOfTwoMachines()
    (first,) = slots.placements(required()).values()
    slots.machines_now = ("a", "a", "a", "b")  # where Spark has computed them again
    slots.ran(4, {2: "a"})
    (second,) = slots.placements(required(first)).values()
    assert Counter(map(second.machine, range(4))) == {"a": 3, "b": 1}
    third = moved(slots, second, [])
    assert Counter(map(third.machine, range(4))) == {"a": 2, "b": 2}


def test_reports_and_the_page_name_moved_stragglers() -> None:
    meter = Meter()
    move = StragglerMove(operator="totals", subtask=1, epoch=9, origin="a", destination="b", exchanged_with=2)
    meter.ran_on(PlacementReport(epoch=9, machines={"totals": ("a", "b")}, moved_stragglers=(move,)))
    report = meter.report().moment.placement
    assert report is not None and report.moved_stragglers == (move,)
    answer = Answer(application="orders", reported_at=None, **report.model_dump())
    assert "Moved in epoch 9: the straggler totals, subtask 1, from a to b, in exchange for subtask 2." in drawn(answer)
