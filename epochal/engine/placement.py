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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from epochal.background.task import BackgroundTask
from epochal.contracts.measurements import StragglerMove
from epochal.contracts.state import StateBackend, StateTaskScope
from epochal.engine.least_moves import Placement, is_spread, moved_to_another_machine, with_least_moves
from epochal.engine.session import REDUCE_LOCALITY, is_one_process
from epochal.operators.distribution import SLOT
from epochal.tasks.slots import MACHINE, MachineNames, Restoration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

MOST_SLOTS = 1 << 24
"""Distance between the first ids of two computations of slots, so that no two have equal plans."""
_plans = count(1)

HELD_MILLISECONDS = 100
"""Time for which the computation of a slot occupies a core, so that each core computes as many of them."""
MOST_COMPUTATIONS = 3
"""Maximum number of computations of slots until they are spread over the cores evenly."""


Placements = Mapping[int, Placement]
"""Placements by number of subtasks."""


@dataclass(frozen=True)
class SlotFrame:
    """Computed slots: ``cached``, of which ``frame`` is the column ``_slot``; the number of ``cores`` of all executors
    at that time; the machine of each slot."""

    cached: DataFrame
    frame: DataFrame
    cores: int
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Requirements:
    """Everything that the placement of an ``epoch`` depends on, except for the executors.

    Operators with the same number of subtasks have one placement. ``before``: by number of subtasks, the machine of
    each in the parent epoch. ``pinned``: subtasks that run on another machine lose state that is only cached, so that
    none moves for an even distribution. ``scopes``: for a number of subtasks and a subtask, its state, as each
    operator's backend restores it. ``stragglers``: slow subtasks, each a number of subtasks, a subtask, an operator.
    """

    epoch: int
    before: Mapping[int, Mapping[int, str]]
    pinned: bool
    scopes: Callable[[int, int], Iterable[tuple[StateBackend, StateTaskScope]]]
    stragglers: Sequence[tuple[int, int, str]] = ()

    @property
    def least_slots(self) -> int:
        return max(self.before)

    def placed(self, machines: Sequence[str], earlier: Mapping[int, Placement] = MappingProxyType({})) -> Placements:
        """Placements over these machines. ``earlier``: placements over the same slots. Empty with one machine, or if a
        machine is unknown."""
        if len(set(machines)) < 2 or "" in machines:
            return {}
        return {
            number: with_least_moves(
                number, machines, before, earlier[number].slots if number in earlier else (), pinned=self.pinned
            )
            for number, before in self.before.items()
        }

    def moving(self, placements: Placements) -> dict[int, list[tuple[int, int]]]:
        """By slot, the subtasks that leave their machine, each with their number."""
        found: dict[int, list[tuple[int, int]]] = {}
        for number, placement in placements.items():
            before = self.before[number]
            for subtask, slot in enumerate(placement.slots):
                if before.get(subtask, placement.machine(subtask)) != placement.machine(subtask):
                    found.setdefault(slot, []).append((number, subtask))
        return found


@dataclass(frozen=True)
class _Move:
    """A prepared move of a straggler: the placements ``after`` replace those ``before``."""

    before: Placements
    after: Placements
    reported: StragglerMove


@dataclass
class Slots:
    """The slots of one Spark session. ``backend``: any state backend of the application.

    Executors that come or go are noticed by the number of cores. New slots are then computed, and the state of the
    subtasks that move is restored, beside running epochs. A slot that Spark has computed again elsewhere, after the
    loss of its executor, is noticed by the machines that tasks report. A straggler moves to another machine once, since
    one that remains slow there is slow because of its keys.
    """

    spark: SparkSession
    backend: StateBackend
    computed: SlotFrame | None = field(default=None, init=False)
    _placements: Placements = field(default_factory=dict, init=False)
    _preparation: BackgroundTask[SlotFrame | _Move] | None = field(default=None, init=False)
    _outdated: bool = field(default=False, init=False)
    moved_stragglers: list[StragglerMove] = field(default_factory=list, init=False)
    _moved: set[tuple[int, int]] = field(default_factory=set, init=False)

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
        if self.impossible is not None or self._placements:
            return self.impossible
        named = self.computed is not None and "" not in self.computed.machines
        return "all executors share a cache" if named else "the state backend does not name its caches"

    def placements(self, required: Requirements) -> Placements:
        """The placements of the next epoch; empty: Spark runs subtasks anywhere. The first call runs a job.

        Placement must be possible.
        """
        cores, computed = self.spark.sparkContext.defaultParallelism, self.computed
        if computed is None or len(computed.machines) < required.least_slots:
            self._use(self._compute(cores, required.least_slots), required)
        elif self._preparation is not None:
            self._take_prepared(required)
        elif cores != computed.cores:
            self._begin(lambda: self._prepare(cores, required))
        elif self._outdated:
            found = replace(computed, machines=self._machines_of(computed.frame))
            self._use(found, required)
            if Counter(found.machines) != Counter(computed.machines):  # another executor may have come for a lost one
                self._begin(lambda: self._prepare(cores, required))
        elif required.stragglers and self._placements and not required.pinned:
            self._begin_move(computed, required)
        if self._placements and self._placements.keys() != required.before.keys():
            assert self.computed is not None
            self._use(self.computed, required)
        return self._placements

    def ran(self, number: int, machines: Mapping[int, str]) -> None:
        """Compare the machines on which the subtasks of an operator with this number have run with the placement."""
        placement = self._placements.get(number)
        if placement is None:
            return
        elsewhere = [subtask for subtask, machine in machines.items() if machine != placement.machine(subtask)]
        if elsewhere:
            log.info("Subtasks %s have run on other machines: their slots have moved", sorted(elsewhere))
            self._outdated = True

    def _use(self, computed: SlotFrame, required: Requirements) -> None:
        earlier = self.computed
        keeps_frame = earlier is not None and earlier.frame is computed.frame
        self.computed, self._outdated = computed, False
        self._placements = required.placed(computed.machines, self._placements if keeps_frame else {})
        if self._placements:
            log.info(
                "Placement of %s subtasks on %d machines: %d move",
                ", ".join(map(str, sorted(self._placements))),
                len(set(computed.machines)),
                sum(map(len, required.moving(self._placements).values())),
            )
        if earlier is not None and not keeps_frame:
            earlier.cached.unpersist()

    def _begin(self, work: Callable[[], SlotFrame | _Move]) -> None:
        self._preparation = BackgroundTask("epochal-placement", work, raises=True)

    def _begin_move(self, computed: SlotFrame, required: Requirements) -> None:
        """Prepare the move of the first straggler that has not moved yet."""
        for number, subtask, operator in required.stragglers:
            before = self._placements.get(number)
            if before is None or (number, subtask) in self._moved:
                continue
            self._moved.add((number, subtask))
            slow = {each for of, each, _ in required.stragglers if of == number}
            after = moved_to_another_machine(before, subtask, slow | {each for of, each in self._moved if of == number})
            if after is None:
                log.info("Operator %r, subtask %d: a straggler, and no other machine has a place", operator, subtask)
                continue
            peer = next((each for each, slot in enumerate(after.slots) if slot == before.slots[subtask]), None)
            if peer is not None:
                self._moved.add((number, peer))
            move = StragglerMove(
                operator=operator,
                subtask=subtask,
                epoch=required.epoch,
                origin=before.machine(subtask),
                destination=after.machine(subtask),
                exchanged_with=peer,
            )
            prepared = _Move(self._placements, {**self._placements, number: after}, move)
            self._begin(partial(self._prepare_move, computed, required, prepared))
            break

    def _take_prepared(self, required: Requirements) -> None:
        preparation = self._preparation
        if preparation is None or preparation.is_running:
            return
        self._preparation = None
        try:
            prepared = preparation.result()
        except Exception as error:  # noqa: BLE001 a later epoch tries again, except for a straggler
            log.warning("The slots of subtasks that move could not be prepared: %s", error)
            return
        if isinstance(prepared, _Move):
            self._move(prepared, required)
        elif len(prepared.machines) < required.least_slots:  # prepared before a rescale
            prepared.cached.unpersist()
        else:
            self._use(prepared, required)

    def _move(self, prepared: _Move, required: Requirements) -> None:
        if self._placements is not prepared.before or self._outdated:
            return  # other subtasks have moved since
        self._placements = prepared.after
        move = prepared.reported.model_copy(update={"epoch": required.epoch})
        self.moved_stragglers.append(move)
        log.info("Operator %r, subtask %d: a straggler, moved to another machine", move.operator, move.subtask)

    def _prepare(self, cores: int, required: Requirements) -> SlotFrame:
        computed = self._compute(cores, required.least_slots)
        self._restore(computed, required, required.placed(computed.machines))
        return computed

    def _prepare_move(self, computed: SlotFrame, required: Requirements, prepared: _Move) -> _Move:
        self._restore(computed, required, prepared.after)
        return prepared

    def _restore(self, computed: SlotFrame, required: Requirements, placements: Placements) -> None:
        """Restore the state of the subtasks that leave their machine, where their slots are."""
        moving = required.moving(placements)
        if moving:
            scopes = {
                slot: [scope for number, subtask in subtasks for scope in required.scopes(number, subtask)]
                for slot, subtasks in moving.items()
            }
            computed.frame.mapInArrow(Restoration(scopes), f"{SLOT} int").collect()

    def _compute(self, cores: int, parallelism: int) -> SlotFrame:
        """Compute slots, as many on each core as necessary."""
        # One task on each core. It starts a Python worker there, so that no machine computes slots before the others.
        of_cores = Counter(self._machines_of(self.spark.range(0, cores, 1, cores).selectExpr(f"int(id) AS {SLOT}")))
        each = -(-parallelism // cores)
        for again in range(MOST_COMPUTATIONS - 1, -1, -1):
            computed = self._computed(cores, cores * each)
            if not again or is_spread(computed.machines, of_cores, parallelism):
                break
            computed.cached.unpersist()
        return computed

    def _computed(self, cores: int, number: int) -> SlotFrame:
        # Spark would take a frame with an equal plan for the cached one, and remove both.
        first = next(_plans) * MOST_SLOTS
        ids = self.spark.range(first, first + number, 1, 1)
        slots = ids.selectExpr(f"int(id - {first}L) AS {SLOT}").repartitionById(number, SLOT)
        held = slots.selectExpr(SLOT, f"reflect('java.lang.Thread', 'sleep', {HELD_MILLISECONDS}L) AS held").cache()
        frame = held.select(SLOT)
        return SlotFrame(held, frame, cores, self._machines_of(frame))

    def _machines_of(self, frame: DataFrame) -> tuple[str, ...]:
        rows = frame.mapInArrow(MachineNames(self.backend), f"{SLOT} int, {MACHINE} string").collect()
        return tuple(row[MACHINE] for row in sorted(rows, key=lambda row: int(row[SLOT])))
