"""Interpreter of a dataflow in one process: instances, partitions and epochs as in the engine, without the engine.

Tests of the translation use it: for any parallelism and any cut into epochs, answers and state are equal to a
sequential run of the class.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.programs.dataflow import Dispatch, Stage
from epochal.programs.distribution import Distribution
from epochal.programs.execution import Answer, Arrival, Departure, Executable, Failed
from epochal.programs.state import Key, State
from epochal.programs.translation import translate


@dataclass(frozen=True)
class Call:
    """One call of an entry."""

    entry: str
    arguments: dict[str, Any] = field(default_factory=dict)


class Interpreter:
    """``parallelism``: the number of instances of each stage. ``chance`` distributes rows that can go to any
    instance."""

    def __init__(self, program: type[Any], parallelism: int = 1, chance: random.Random | None = None) -> None:
        self.dataflow = translate(program)
        self._executable = Executable(self.dataflow, program)
        self._parallelism = parallelism
        self._chance = chance or random.Random(0)
        self._states = {
            name: [element.make() for _ in range(parallelism)] for name, element in self.dataflow.elements.items()
        }
        self._sequence = 0

    def epoch(self, calls: Sequence[Call]) -> list[Any]:
        """Run the calls of one epoch. Returns the answer of each; a failed call returns :class:`Failed`."""
        inboxes: dict[int, list[list[Arrival]]] = {}
        answers: dict[int, Any] = {}
        first = self._sequence
        for call in calls:
            self._deliver(self._executable.call(call.entry, self._sequence, call.arguments), 0, inboxes, answers)
            self._sequence += 1
        for number, stage in enumerate(self.dataflow.stages):
            arrivals = inboxes.get(number, [[] for _ in range(self._parallelism)])
            for instance, (state, rows) in enumerate(zip(self._state_of(stage), arrivals, strict=True)):
                self._chance.shuffle(rows)  # the arrival order of rows is undefined
                for result in list(self._executable.run(stage, rows, state, self._parallelism)):
                    self._deliver(result, instance, inboxes, answers)
        types = self.dataflow.entries
        return [
            each if isinstance(each := answers[first + n], Failed) else types[call.entry].answer.from_row(each)
            for n, call in enumerate(calls)
        ]

    def instances(self, element: str) -> Sequence[State]:
        """Return the instances of a state element."""
        return self._states[element]

    def rows(self, element: str) -> Iterator[tuple[Key, Any]]:
        """Iterate over the elements of a partitioned state element, by key."""
        return iter(sorted(row for state in self._states[element] for row in state.rows()))

    def restart(self) -> None:
        """Recreate each instance of state from its rows, as after a failure."""
        for name, states in self._states.items():
            element = self.dataflow.elements[name]
            for number, state in enumerate(states):
                rows = [(key, element.model.to_row(value)) for key, value in state.rows()]
                states[number] = element.make()
                states[number].load((key, element.model.from_row(value)) for key, value in rows)

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism. Partitions move. Partial state can only get more instances, which are initially
        empty."""
        for name, element in self.dataflow.elements.items():
            states = [element.make() for _ in range(parallelism)]
            if element.distribution is Distribution.PARTIAL:
                if parallelism < self._parallelism:
                    raise ValueError(f"{name} is partial: its instances cannot become fewer without merging them")
                states[: self._parallelism] = self._states[name]
            else:
                for key, value in self.rows(name):
                    states[self._partition(key[0], parallelism)].load([(key, value)])
            self._states[name] = states
        self._parallelism = parallelism

    def _state_of(self, stage: Stage) -> Sequence[State | None]:
        return [None] * self._parallelism if stage.element is None else self._states[stage.element]

    def _deliver(
        self,
        result: Departure | Answer,
        instance: int,
        inboxes: dict[int, list[list[Arrival]]],
        answers: dict[int, Any],
    ) -> None:
        if isinstance(result, Answer):
            answers.setdefault(result.sequence, result.value)
            return
        edge = self.dataflow.edges[result.edge]
        stage = next(n for n, each in enumerate(self.dataflow.stages) if edge.target in each.tasks)
        inbox = inboxes.setdefault(stage, [[] for _ in range(self._parallelism)])
        row = Arrival(result.edge, result.sequence, result.values, result.index, instance, result.method)
        for target in self._targets(edge.dispatch, result):
            inbox[target].append(row)

    def _targets(self, dispatch: Dispatch, row: Departure) -> Sequence[int]:
        match dispatch:
            case Dispatch.KEY:
                return [self._partition(row.key, self._parallelism)]
            case Dispatch.ANY:
                return [self._chance.randrange(self._parallelism)]
            case Dispatch.ALL:
                return range(self._parallelism)
            case Dispatch.GATHER:
                return [row.sequence % self._parallelism]

    @staticmethod
    def _partition(key: Any, parallelism: int) -> int:
        return zlib.crc32(repr(key).encode()) % parallelism
