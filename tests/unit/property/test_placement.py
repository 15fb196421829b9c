"""Placement of subtasks: even, one slot each, and with the fewest moves."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.engine.least_moves import is_spread, moved_to_another_machine, with_least_moves
from epochal.engine.placement import Requirements

MACHINES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def _cases(draw: st.DrawFn) -> tuple[int, list[str], dict[int, str]]:
    machines = draw(st.lists(MACHINES, min_size=1, max_size=9))
    parallelism = draw(st.integers(1, len(machines)))
    before = draw(st.dictionaries(st.integers(0, 9), st.one_of(MACHINES, st.just("gone")), max_size=10))
    return parallelism, machines, before


def _is_even(loads: Counter[str], slots: Counter[str]) -> bool:
    return all(loads[one] - loads[other] <= 1 or loads[other] == slots[other] for one in slots for other in slots)


def _most_that_can_stay(parallelism: int, slots: Counter[str], staying: Counter[str]) -> int:
    """Tries every even distribution."""
    names = sorted(slots)
    found = []
    for loads in product(*(range(slots[name] + 1) for name in names)):
        distribution = Counter(dict(zip(names, loads, strict=True)))
        if sum(loads) == parallelism and _is_even(distribution, slots):
            found.append(sum(min(distribution[name], staying[name]) for name in names))
    return max(found)


@given(_cases())
def test_placement_is_even_and_moves_the_fewest_subtasks(case: tuple[int, list[str], dict[int, str]]) -> None:
    parallelism, machines, before = case
    placement = with_least_moves(parallelism, machines, before)
    slots, loads = Counter(machines), Counter(placement.machine(subtask) for subtask in range(parallelism))
    assert len(placement.slots) == len(set(placement.slots)) == parallelism
    assert _is_even(loads, slots)
    stayed = sum(before.get(subtask) == placement.machine(subtask) for subtask in range(parallelism))
    staying = Counter(machine for subtask, machine in before.items() if subtask < parallelism)
    assert stayed == _most_that_can_stay(parallelism, slots, staying)


@given(_cases())
def test_placement_over_the_same_slots_does_not_change(case: tuple[int, list[str], dict[int, str]]) -> None:
    parallelism, machines, before = case
    placement = with_least_moves(parallelism, machines, before)
    ran = {subtask: placement.machine(subtask) for subtask in range(parallelism)}
    assert with_least_moves(parallelism, machines, ran, placement.slots) == placement


@given(_cases())
def test_pinned_subtasks_leave_only_machines_without_a_slot(case: tuple[int, list[str], dict[int, str]]) -> None:
    parallelism, machines, before = case
    placement = with_least_moves(parallelism, machines, before, pinned=True)
    slots, moved = Counter(machines), Counter[str]()
    assert len(placement.slots) == len(set(placement.slots)) == parallelism
    for subtask, machine in before.items():
        if subtask < parallelism:
            moved[machine] += machine != placement.machine(subtask)
    staying = Counter(machine for subtask, machine in before.items() if subtask < parallelism)
    assert all(moved[machine] == max(0, staying[machine] - slots[machine]) for machine in staying)


def test_only_subtasks_of_a_lost_machine_move() -> None:
    ran = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}
    placement = with_least_moves(6, ["a", "a", "a", "b", "b", "b"], ran)
    assert [placement.machine(subtask) for subtask in (0, 1, 3, 4)] == ["a", "b", "a", "b"]
    assert {placement.machine(subtask) for subtask in (2, 5)} == {"a", "b"}


@given(_cases(), st.data())
def test_operators_with_the_same_number_of_subtasks_have_one_placement(
    case: tuple[int, list[str], dict[int, str]], data: st.DataObject
) -> None:
    most, machines, before = case
    numbers = data.draw(st.lists(st.integers(1, most), max_size=3).map(lambda found: {most, *found}))
    required = Requirements(1, dict.fromkeys(numbers, before), pinned=False, scopes=lambda number, subtask: ())
    placements = required.placed(machines)
    if len(set(machines)) < 2:
        assert placements == {}
        return
    assert placements == {number: with_least_moves(number, machines, before) for number in numbers}
    assert required.placed(machines, placements).keys() == placements.keys()
    moving = required.moving(placements)
    for number, placement in placements.items():
        moved = {subtask for slot, found in moving.items() for each, subtask in found if each == number}
        assert moved == {
            subtask for subtask in range(number) if before.get(subtask) not in (None, placement.machine(subtask))
        }


@pytest.mark.parametrize(
    ("machines", "parallelism", "spread"),
    [
        ("aabbcc", 6, True),
        ("aabbcc", 5, True),
        ("aaaabc", 6, False),
        ("aaabbc", 6, False),
        ("aabb", 4, False),  # c has a core, and no slot
        ("abcabc", 3, True),
        ("aaaabbcc", 8, True),  # a has two cores
    ],
)
def test_slots_are_spread_over_cores_or_as_subtasks_need_it(machines: str, parallelism: int, spread: bool) -> None:
    cores = {"a": 1 + (len(machines) == 8), "b": 1, "c": 1}
    assert is_spread(machines, cores, parallelism) is spread


@given(_cases(), st.data())
def test_a_straggler_leaves_its_machine_and_at_most_one_other_subtask_moves(
    case: tuple[int, list[str], dict[int, str]], data: st.DataObject
) -> None:
    parallelism, machines, before = case
    placement = with_least_moves(parallelism, machines, before)
    subtask = data.draw(st.integers(0, parallelism - 1))
    kept = data.draw(st.sets(st.integers(0, parallelism - 1)))
    moved = moved_to_another_machine(placement, subtask, kept)
    here = placement.machine(subtask)
    loads = Counter(map(placement.machine, range(parallelism)))
    slots = Counter(machines)
    if moved is None:
        others = {*machines} - {here}
        assert not any(loads[other] < min(loads[here], slots[other]) for other in others)
        assert not any(placement.machine(peer) in others for peer in {*range(parallelism)} - kept)
        return
    assert moved.machine(subtask) != here
    assert moved.machines == placement.machines and len(set(moved.slots)) == parallelism
    others = {each for each in range(parallelism) if moved.slots[each] != placement.slots[each]} - {subtask}
    assert len(others) <= 1 and not others & kept
    assert all(moved.slots[peer] == placement.slots[subtask] for peer in others)
    after = Counter(map(moved.machine, range(parallelism)))
    if others:
        assert after == loads
    else:
        assert _is_even(after, slots)
