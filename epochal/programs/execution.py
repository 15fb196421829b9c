"""Task elements as functions over rows: what an operator of a state element does with the rows that come to it.

All accesses of an operator are made in the order of calls: rows of all its inputs are sorted by ``(sequence, index)``.
So each element of state sees the calls one after the other, and as calls go through operators in an order that suits
all of them, the result is that of the calls run one after the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from epochal.programs.conforming import CHECK, TYPES, compiled, conform
from epochal.programs.dataflow import Dataflow, Dispatch, Edge, Stage, TaskElement
from epochal.programs.declaration import declared
from epochal.programs.state import State
from epochal.programs.task_code import ANSWER, CROSS


@dataclass(frozen=True)
class Arrival:
    """A row that comes along an edge. ``values`` are in the order of the edge's fields, as they stand in rows; those of
    a fan-out are the method's name and its arguments. ``index`` tells rows of one call apart; ``instance`` is the
    sender's."""

    edge: int
    sequence: int
    values: tuple[Any, ...]
    index: int = 0
    instance: int = 0


@dataclass(frozen=True)
class Departure:
    """A row that leaves along an edge; ``key`` is what it is dispatched by, where it is by key."""

    edge: int
    sequence: int
    values: tuple[Any, ...]
    index: int = 0
    key: Any = None


@dataclass(frozen=True)
class Failed:
    """The exception that a call has raised."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        return cls(type(error).__name__, str(error))


@dataclass(frozen=True)
class Answer:
    """What a call answers, as it stands in rows. Of several that one call has, that of the first instance counts."""

    sequence: int
    value: Any


class Executable:
    """The compiled task elements of a dataflow. ``program``: the class; its methods that are no entries are called."""

    def __init__(self, dataflow: Dataflow, program: type[Any]) -> None:
        self.dataflow = dataflow
        self._program = program
        self._self = object.__new__(program)
        self._functions = {
            task.number: self._compiled(task, program) for task in dataflow.tasks if task.function is not None
        }

    def call(self, entry: str, sequence: int, arguments: dict[str, Any]) -> Departure | Answer:
        """The row of a call, or its answer when the arguments are not of the entry's types."""
        of = self.dataflow.entries[entry]
        declared_entry = declared(self._program).entries[entry]
        (edge,) = (each for each in self.dataflow.into(of.target) if each.source is None)
        try:
            values = declared_entry.arguments((), arguments)
        except (TypeError, OverflowError) as error:
            return Answer(sequence, Failed.of(error))
        row = tuple(type.to_row(values[name]) for name, type in of.parameter_types.items())
        constant = None if edge.key is None or edge.key in values else _constant(edge.key)
        return Departure(edge.number, sequence, row, key=values.get(edge.key or "", constant))

    def run(
        self, stage: Stage, arrivals: Iterable[Arrival], state: State | None, instances: int = 1
    ) -> Iterator[Departure | Answer]:
        """All rows of an epoch that come to one instance of a stage. ``state``: what the instance has of the state
        element, changed by this; ``instances``: how many send what is gathered."""
        ordered = sorted(arrivals, key=lambda row: (row.sequence, row.index, row.instance))
        for sequence, rows in groupby(ordered, key=lambda row: row.sequence):
            together = list(rows)
            if self._edge(together[0]).dispatch is Dispatch.GATHER:
                if len(together) == instances:  # otherwise an instance has failed, which is the call's answer
                    yield from self._task(sequence, self._edge(together[0]), self._gathered(together), state)
                continue
            for row in together:
                edge = self._edge(row)
                if edge.fan_out:
                    self._write(edge, row, state)
                else:
                    yield from self._task(sequence, edge, self._values(edge, row), state)

    def _edge(self, row: Arrival) -> Edge:
        return self.dataflow.edges[row.edge]

    def _task(
        self, sequence: int, edge: Edge, values: dict[str, Any], state: State | None
    ) -> Iterator[Departure | Answer]:
        sent: list[Departure] = []

        def send(number: int, method: str, *arguments: Any, **named: Any) -> None:
            sent.append(self._sent(number, method, sequence, len(sent), arguments, named))

        try:
            result = self._functions[edge.target](self._self, state, send, **values)
        except Exception as error:  # noqa: BLE001 # whatever the author's code raises is what the call answers
            result = Failed.of(error)
        yield from sent
        if isinstance(result, _Crossing):
            yield self._departure(sequence, result)
        elif isinstance(result, _Answered):
            entry = self.dataflow.tasks[edge.target].entry
            yield Answer(sequence, self.dataflow.entries[entry].answer.to_row(result.value))
        else:
            yield Answer(sequence, result)

    def _departure(self, sequence: int, crossing: _Crossing) -> Departure:
        edge = self.dataflow.edges[crossing.edge]
        pairs = zip(edge.fields, crossing.values, strict=True)
        return Departure(edge.number, sequence, tuple(c.type.to_row(each) for c, each in pairs), key=crossing.key)

    def _sent(
        self, number: int, method: str, sequence: int, index: int, arguments: Sequence[Any], named: dict[str, Any]
    ) -> Departure:
        """A write of a fan-out. What is wrong with its arguments is found here, where Python would find it."""
        edge = self.dataflow.edges[number]
        target = self.dataflow.tasks[edge.target]
        element = self.dataflow.elements[target.element or ""]
        bound = element.kind.bind(method, arguments, named)
        getattr(element.make(), method)(**bound)
        write = target.writes[method]
        conformed = {name: type.conform(bound[name], name) for name, type in write.parameter_types.items()}
        access = element.kind.access(method)
        assert access is not None
        row = tuple(type.to_row(conformed[name]) for name, type in write.parameter_types.items())
        return Departure(number, sequence, (method, *row), index, conformed[access.key[element.by or ""]])

    def _write(self, edge: Edge, row: Arrival, state: State | None) -> None:
        method, *values = row.values
        parameters = self.dataflow.tasks[edge.target].writes[method].parameter_types
        pairs = zip(parameters.items(), values, strict=True)
        getattr(state, method)(**{name: type.from_row(value) for (name, type), value in pairs})

    @staticmethod
    def _values(edge: Edge, row: Arrival) -> dict[str, Any]:
        pairs = zip(edge.fields, row.values, strict=True)
        return {column.name: column.type.from_row(value) for column, value in pairs}

    def _gathered(self, rows: Sequence[Arrival]) -> dict[str, Any]:
        """Variables with one value are the same in all rows."""
        edge = self._edge(rows[0])
        each = [self._values(edge, row) for row in rows]
        several = self.dataflow.tasks[edge.target].gathered
        return {name: [row[name] for row in each] if name in several else each[0][name] for name in each[0]}

    def _compiled(self, task: TaskElement, program: type[Any]) -> Any:
        entry = declared(program).entries[task.entry]
        types = {**entry.types, "return": entry.answer}
        names = {CHECK: conform, TYPES: types, CROSS: _Crossing, ANSWER: _Answered}
        assert task.function is not None
        return compiled(task.function, self.dataflow.file, {**entry.function.__globals__, **names})


@dataclass(frozen=True)
class _Crossing:
    edge: int
    key: Any
    values: tuple[Any, ...]


@dataclass(frozen=True)
class _Answered:
    value: Any


def _constant(text: str) -> Any:
    return ast.literal_eval(text)
