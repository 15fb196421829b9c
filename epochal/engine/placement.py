"""Placement: the executor on which Spark runs each subtask, so that it finds its state in the cache of its machine.

Spark runs the tasks of a shuffle on any executor. A *slot* is a row of a small DataFrame that is cached where it was
computed. The rows of an epoch are repartitioned by the slots of their subtasks and joined with this DataFrame. Both
sides have the same partitioning, so that Spark adds no shuffle and prefers, for each partition, the executor that has
the cached row. Spark decides where a slot is, the driver only which subtask has which slot.

A machine is known by the name of its cache (:attr:`StateBackend.cache_name`), since several executors of one machine
share a cache. With one machine there is no placement.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from epochal.contracts.state import StateBackend
from epochal.engine.session import REDUCE_LOCALITY, is_one_process
from epochal.operators.distribution import SLOT
from epochal.tasks.machine_names import MACHINE, MachineNames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

HELD_MILLISECONDS = 100
"""Time for which the computation of a slot occupies a core, so that each core computes one of them."""


@dataclass(frozen=True)
class Placement:
    """``slots``: the slot of each subtask. ``machines``: the machine of each slot."""

    slots: tuple[int, ...]
    machines: tuple[str, ...]

    def machine(self, subtask: int) -> str:
        return self.machines[self.slots[subtask]]


def with_least_moves(
    parallelism: int, machines: Sequence[str], before: Mapping[int, str], slots: Sequence[int] = ()
) -> Placement:
    """Distribute subtasks evenly over machines so that the fewest leave the machine that has their state.

    ``machines``: the machine of each slot; there are at least ``parallelism`` slots. ``before``: machines of subtasks.
    ``slots``: their earlier slots, which they keep if possible. The numbers of subtasks of two machines differ by one
    at most, except where a machine has too few slots.
    """
    free: dict[str, deque[int]] = defaultdict(deque)
    for slot, machine in enumerate(machines):
        free[machine].append(slot)
    staying = Counter(machine for subtask, machine in before.items() if subtask < parallelism)
    room = _shares(parallelism, {machine: len(found) for machine, found in free.items()}, staying)
    chosen: dict[int, int] = {}
    stays = [subtask for subtask in range(parallelism) if _take(room, before.get(subtask))]
    for subtask in stays:
        machine = before[subtask]
        if subtask < len(slots) and slots[subtask] in free[machine]:
            free[machine].remove(slots[subtask])
            chosen[subtask] = slots[subtask]
    open_machines = deque(machine for machine, count in room.items() for _ in range(count))
    for subtask in range(parallelism):
        if subtask not in chosen:
            machine = before[subtask] if subtask in stays else open_machines.popleft()
            chosen[subtask] = free[machine].popleft()
    return Placement(tuple(chosen[subtask] for subtask in range(parallelism)), tuple(machines))


def _shares(parallelism: int, slots: Mapping[str, int], staying: Mapping[str, int]) -> dict[str, int]:
    """Number of subtasks of each machine: even, at most its slots, and the larger shares where more would stay."""
    shares = dict.fromkeys(slots, 0)
    left = parallelism
    while left:
        least = min(shares[machine] for machine in slots if shares[machine] < slots[machine])
        lowest = [machine for machine in slots if shares[machine] == least and least < slots[machine]]
        lowest.sort(key=lambda machine: staying.get(machine, 0) <= least)
        for machine in lowest[:left]:
            shares[machine] += 1
        left -= min(left, len(lowest))
    return shares


def _take(room: dict[str, int], machine: str | None) -> bool:
    if machine is None or not room.get(machine):
        return False
    room[machine] -= 1
    return True


@dataclass
class Slots:
    """The slots of one Spark session. ``backend``: any state backend of the application.

    Executors that come or go are noticed by the number of cores; a slot that Spark has computed again elsewhere, after
    the loss of its executor, by the machines that tasks report.
    """

    spark: SparkSession
    backend: StateBackend
    _cores: int = field(default=0, init=False)
    _frame: DataFrame | None = field(default=None, init=False)
    _machines: tuple[str, ...] = field(default=(), init=False)
    _placement: Placement | None = field(default=None, init=False)
    _outdated: bool = field(default=False, init=False)

    @cached_property
    def impossible(self) -> str | None:
        """The reason why this session has no placement; ``None`` if it can have one."""
        if is_remote():
            return "Spark Connect does not tell where tasks run"
        context = self.spark.sparkContext
        if is_one_process(str(context.master)):
            return "Spark runs in one process"
        if context.getConf().get(REDUCE_LOCALITY, "true") != "false":
            return f"Spark was started without {REDUCE_LOCALITY}=false"
        if self.spark.conf.get("spark.speculation", "false") == "true":
            return "spark.speculation runs copies of tasks on other machines"
        return None

    @property
    def unplaced(self) -> str | None:
        """The reason why the latest epoch had no placement; ``None`` if it had one."""
        if self.impossible is not None or self._placement is not None:
            return self.impossible
        return "the state backend does not name its caches" if "" in self._machines else "all executors share a cache"

    def placement(self, parallelism: int, before: Mapping[int, str]) -> Placement | None:
        """The placement of the next epoch; ``None``: no placement. ``before``: the machines of the parent epoch.

        Runs a job if executors have come or gone.
        """
        if self.impossible is not None:
            return None
        cores = self.spark.sparkContext.defaultParallelism
        if self._frame is None or cores != self._cores or len(self._machines) < parallelism:
            self._compute(cores, parallelism)
        elif self._outdated:
            self._read()
        elif self._placement is None or len(self._placement.slots) == parallelism:
            return self._placement
        self._outdated = False
        self._placement = self._placed(parallelism, before)
        return self._placement

    @property
    def frame(self) -> DataFrame:
        """The slots, with column ``_slot``."""
        assert self._frame is not None
        return self._frame

    def ran(self, machines: Mapping[int, str]) -> None:
        """Compare the machines on which subtasks have run with the placement."""
        placement = self._placement
        if placement is None:
            return
        elsewhere = {subtask for subtask, machine in machines.items() if machine != placement.machine(subtask)}
        if elsewhere:
            log.info("Subtasks %s have run on other machines: their slots have moved", sorted(elsewhere))
            self._outdated = True

    def _placed(self, parallelism: int, before: Mapping[int, str]) -> Placement | None:
        machines = set(self._machines)
        if len(machines) < 2 or "" in machines:
            return None
        slots = () if self._placement is None else self._placement.slots
        placement = with_least_moves(parallelism, self._machines, before, slots)
        moved = sum(before.get(subtask, "") not in ("", placement.machine(subtask)) for subtask in range(parallelism))
        log.info("Placement of %d subtasks on %d machines: %d move", parallelism, len(machines), moved)
        return placement

    def _compute(self, cores: int, parallelism: int) -> None:
        """Compute slots, as many on each core as necessary, and remove the earlier ones."""
        earlier, self._placement = self._frame, None
        count = cores * -(-parallelism // cores)
        slots = self.spark.range(0, count, 1, 1).selectExpr(f"int(id) AS {SLOT}").repartitionById(count, SLOT)
        held = slots.selectExpr(SLOT, f"reflect('java.lang.Thread', 'sleep', {HELD_MILLISECONDS}L) AS held")
        self._frame, self._cores = held.cache(), cores
        self._read()
        if earlier is not None:
            earlier.unpersist()

    def _read(self) -> None:
        names = self.frame.select(SLOT).mapInArrow(MachineNames(self.backend), f"{SLOT} int, {MACHINE} string")
        self._machines = tuple(row[MACHINE] for row in sorted(names.collect(), key=lambda row: int(row[SLOT])))
