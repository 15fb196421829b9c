"""The subtasks of a program's operators in a Spark session: their numbers, and the slots that they are placed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from pyspark.sql import SparkSession

from epochal.contracts.configuration import Configuration
from epochal.contracts.measurements import StragglerMove
from epochal.contracts.state import StateBackend, StateTaskScope
from epochal.engine.job import Answers, EpochPlan, Participants
from epochal.engine.placement import Requirements, Slots
from epochal.operators.contract import OperatorPlan
from epochal.operators.distribution import PlacedSlots, Subtasks
from epochal.pipeline.graph import Graph, SourceNode

FEWEST_ROWS: Final = 20_000
"""Rows of an epoch below which a further shuffle takes longer than it saves."""
ROWS_PER_GROUP: Final = 4
"""Rows of an epoch for each row that an operator takes, from which rows are aggregated before their shuffle."""


@dataclass
class OperatorSubtasks:
    """The subtasks of the operators of one program."""

    spark: SparkSession
    graph: Graph
    participants: Participants
    operators: Mapping[str, OperatorPlan]
    configuration: Configuration
    _combined: set[str] = field(default_factory=set)
    """Operators that took far fewer rows than their sources had in the latest epoch with rows."""

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
        return {name: self._combining(name, self._by_number[number]) for name, number in self.numbers.items()}

    def _combining(self, operator: str, subtasks: Subtasks) -> Subtasks:
        return replace(subtasks, combined=True) if operator in self._combined else subtasks

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
        """Compare the machines on which subtasks have run with their placement, and the rows that operators took with
        those of their sources."""
        self._compare_rows(answers)
        if self.slots is not None:
            for name, machines in answers.machines.items():
                self.slots.ran(self.numbers[name], machines)

    def _compare_rows(self, answers: Answers) -> None:
        taken: Counter[str] = Counter()
        for (operator, _), work in answers.work.items():
            taken[operator] += work.rows
        for operator, sources in self._sources.items():
            rows = sum(answers.rows_read.get(source, 0) for source in sources)
            if rows >= max(FEWEST_ROWS, ROWS_PER_GROUP * taken[operator]):
                self._combined.add(operator)
            elif rows:
                self._combined.discard(operator)

    @cached_property
    def _sources(self) -> Mapping[str, frozenset[str]]:
        """The sources that each operator reads, directly or through others."""
        nodes = {node.id: node.name for node in self.graph.nodes if isinstance(node, SourceNode)}
        return {
            operator.name: frozenset(nodes[id] for id in self.graph.ancestors([operator.id]) if id in nodes)
            for operator in self.graph.operators
        }

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
