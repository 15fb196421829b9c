"""The subtasks of a program's operators in a Spark session: their numbers, and the slots that they are placed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pyspark.sql import SparkSession

from epochal.contracts.configuration import Configuration
from epochal.contracts.measurements import StragglerMove
from epochal.contracts.state import StateBackend, StateTaskScope
from epochal.engine.job import Answers, EpochPlan, Participants
from epochal.engine.placement import Requirements, Slots
from epochal.operators.contract import OperatorPlan
from epochal.operators.distribution import PlacedSlots, Subtasks
from epochal.pipeline.graph import Graph


@dataclass
class OperatorSubtasks:
    """The subtasks of the operators of one program."""

    spark: SparkSession
    graph: Graph
    participants: Participants
    operators: Mapping[str, OperatorPlan]
    configuration: Configuration

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Number of subtasks, by operator."""
        return self.graph.subtasks(self.configuration)

    @cached_property
    def slots(self) -> Slots | None:
        """``None``: there is no operator to place."""
        backends = list(self.participants.operators.values())
        return Slots(self.spark, backends[0]) if backends else None

    @cached_property
    def _by_number(self) -> dict[int, Subtasks]:
        usual, most = self.configuration.parallelism, self.configuration.max_parallelism
        return {number: Subtasks.of(self.spark, number, most, usual) for number in {*self.numbers.values()}}

    @property
    def unplaced(self) -> str | None:
        """The reason why the latest epoch had no placement; ``None`` if it had one, or there is nothing to place."""
        return None if self.slots is None else self.slots.unplaced

    @property
    def moved_stragglers(self) -> tuple[StragglerMove, ...]:
        """Stragglers that have moved since the session began."""
        return () if self.slots is None else tuple(self.slots.moved_stragglers)

    def take_over(self, before: OperatorSubtasks) -> None:
        """Continue to use the slots of another program of this session."""
        if before.spark is self.spark and before.slots and self.slots:
            self.slots = before.slots

    def of(self, plan: EpochPlan) -> Mapping[str, Subtasks]:
        """The subtasks of each operator in an epoch, each in a slot of the machine that has its state."""
        if self.slots is not None and self.slots.impossible is None:
            self._place(self.slots, plan)
        return {name: self._by_number[number] for name, number in self.numbers.items()}

    def _place(self, slots: Slots, plan: EpochPlan) -> None:
        pinned = not all(table.durable for table in self.participants.tables)
        slow = [
            (self.numbers[name], subtask, name)
            for name, subtasks in plan.stragglers.items()
            if name in self.numbers
            for subtask in subtasks
        ]
        scopes = partial(self._durable_scopes, plan)
        required = Requirements(plan.scope.epoch, self._machines_before(plan), pinned, scopes, slow)
        placements = slots.placements(required)
        for number, subtasks in self._by_number.items():
            placement, placed = placements.get(number), None
            if placement is not None and slots.computed is not None:
                placed = PlacedSlots(slots.computed.frame, len(placement.machines), placement.slots)
            if placed != subtasks.slots:
                self._by_number[number] = replace(subtasks, slots=placed)

    def ran(self, answers: Answers) -> None:
        """Compare the machines on which subtasks have run with their placement."""
        if self.slots is not None:
            for name, machines in answers.machines.items():
                self.slots.ran(self.numbers[name], machines)

    def _machines_before(self, plan: EpochPlan) -> dict[int, dict[int, str]]:
        """By number of subtasks, the machine of each in the parent epoch, as far as it is known."""
        found: dict[int, dict[int, str]] = {number: {} for number in self._by_number}
        for name, machines in plan.machines.items():
            number = self.numbers.get(name, 0)
            # After a rescale by a whole factor, a subtask has key groups of the one of this number.
            if machines and number in found and (not found[number] or len(machines) == number):
                found[number] = {subtask: machines[subtask % len(machines)] for subtask in range(number)}
        return found

    def _durable_scopes(
        self, plan: EpochPlan, number: int, subtask: int
    ) -> Iterator[tuple[StateBackend, StateTaskScope]]:
        """The backend and the scope of a subtask of each operator with this number of them, without state that only a
        cache has."""
        most = self.configuration.max_parallelism
        for name, backend in self.participants.operators.items():
            if self.numbers[name] == number:
                tables = tuple(table for table in self.operators[name].tables if table.durable)
                chains = {table.id: plan.chains[table.id] for table in tables}
                yield backend, StateTaskScope(plan.scope, name, subtask, number, most, tables, chains)
