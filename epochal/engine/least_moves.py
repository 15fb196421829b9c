"""Placements: which slot, and so which machine, each subtask has. Pure functions.

Spark decides on which machine a slot is (:mod:`epochal.engine.placement`), these functions which subtask has it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Placement:
    """``slots``: the slot of each subtask. ``machines``: the machine of each slot."""

    slots: tuple[int, ...]
    machines: tuple[str, ...]

    def machine(self, subtask: int) -> str:
        return self.machines[self.slots[subtask]]


def with_least_moves(
    parallelism: int,
    machines: Sequence[str],
    before: Mapping[int, str],
    slots: Sequence[int] = (),
    *,
    pinned: bool = False,
) -> Placement:
    """Distribute subtasks evenly over machines so that the fewest leave the machine that has their state.

    ``machines``: the machine of each slot; there are at least ``parallelism`` slots. ``before``: machines of subtasks.
    ``slots``: their earlier slots, which they keep if possible. The numbers of subtasks of two machines differ by one
    at most, except where a machine has too few slots. With ``pinned`` they may differ more: a subtask leaves its
    machine only if that has no slot for it.
    """
    free: dict[str, deque[int]] = defaultdict(deque)
    for slot, machine in enumerate(machines):
        free[machine].append(slot)
    staying = Counter(machine for subtask, machine in before.items() if subtask < parallelism)
    numbers = {machine: len(found) for machine, found in free.items()}
    least = {machine: min(staying[machine], number) if pinned else 0 for machine, number in numbers.items()}
    room = _shares(parallelism, numbers, staying, least)
    chosen: dict[int, int] = {}
    stays = [subtask for subtask in range(parallelism) if _take(room, before.get(subtask))]
    for subtask in stays:
        machine = before[subtask]
        if subtask < len(slots) and slots[subtask] in free[machine]:
            free[machine].remove(slots[subtask])
            chosen[subtask] = slots[subtask]
    open_machines = deque(machine for machine, number in room.items() for _ in range(number))
    for subtask in range(parallelism):
        if subtask not in chosen:
            machine = before[subtask] if subtask in stays else open_machines.popleft()
            chosen[subtask] = free[machine].popleft()
    return Placement(tuple(chosen[subtask] for subtask in range(parallelism)), tuple(machines))


def moved_to_another_machine(placement: Placement, subtask: int, kept: Collection[int] = ()) -> Placement | None:
    """The placement in which a subtask has left its machine, and at most one other subtask has changed its slot.

    The subtask gets a free slot of a machine with fewer subtasks; without one, it exchanges its slot with a subtask of
    the machine with the fewest. The numbers of subtasks of two machines differ no more than before. ``kept``: subtasks
    that no exchange moves. ``None``: no other machine has a place.
    """
    slots, here = placement.slots, placement.machine(subtask)
    numbers = Counter(placement.machines[slot] for slot in slots)
    others = sorted({*placement.machines} - {here}, key=lambda machine: (numbers[machine], machine))
    used = {*slots}
    for machine in others:
        free = [slot for slot, at in enumerate(placement.machines) if at == machine and slot not in used]
        if free and numbers[machine] < numbers[here]:
            return _with_slots(placement, {subtask: free[0]})
    for machine in others:
        peers = [peer for peer in range(len(slots)) if placement.machine(peer) == machine and peer not in kept]
        if peers:
            return _with_slots(placement, {subtask: slots[peers[0]], peers[0]: slots[subtask]})
    return None


def is_spread(machines: Sequence[str], cores: Mapping[str, int], parallelism: int) -> bool:
    """Return whether slots, by their machines, are spread evenly: over the ``cores``, or as far as subtasks need it.

    ``cores``: the number of cores of each machine; it is inexact while other jobs occupy some of them.
    """
    slots = Counter(machines)
    by_cores = all(slots[machine] * sum(cores.values()) == number * len(machines) for machine, number in cores.items())
    placed = Counter(map(with_least_moves(parallelism, machines, {}).machine, range(parallelism)))
    loads = [placed[machine] for machine in {*cores, *machines}]
    return by_cores or max(loads) - min(loads) <= 1


def _with_slots(placement: Placement, changed: Mapping[int, int]) -> Placement:
    return replace(placement, slots=tuple(changed.get(each, slot) for each, slot in enumerate(placement.slots)))


def _shares(
    parallelism: int, slots: Mapping[str, int], staying: Mapping[str, int], least: Mapping[str, int]
) -> dict[str, int]:
    """Number of subtasks of each machine, from ``least`` to its slots: even, and larger where more would stay."""
    shares = dict(least)
    left = parallelism - sum(shares.values())
    while left:
        lowest_share = min(shares[machine] for machine in slots if shares[machine] < slots[machine])
        lowest = [machine for machine in slots if shares[machine] == lowest_share < slots[machine]]
        lowest.sort(key=lambda machine: staying.get(machine, 0) <= lowest_share)
        for machine in lowest[:left]:
            shares[machine] += 1
        left -= min(left, len(lowest))
    return shares


def _take(room: dict[str, int], machine: str | None) -> bool:
    if machine is None or not room.get(machine):
        return False
    room[machine] -= 1
    return True
