"""Task elements as functions over rows: what an operator of a state element does with the rows that come to it.

All accesses of an operator are made in the order of calls: rows of all its inputs are sorted by ``(sequence, index)``.
So each element of state sees the calls one after the other, and as calls go through operators in an order that suits
all of them, the result is that of the calls run one after the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from epochal.programs.conforming import CHECKS, compiled
from epochal.programs.dataflow import Dataflow, Dispatch, Edge, Stage, TaskElement
from epochal.programs.declaration import declared
from epochal.programs.rows import Answer as Answer
from epochal.programs.rows import Arrival as Arrival
from epochal.programs.rows import Crossing, Outlet, Results
from epochal.programs.rows import Departure as Departure
from epochal.programs.rows import Failed as Failed
from epochal.programs.stage_rows import StageRows
from epochal.programs.state import State
from epochal.programs.task_code import CROSS


class Executable:
    """The compiled task elements of a dataflow. ``program``: the class; its methods that are no entries are called."""

    def __init__(self, dataflow: Dataflow, program: type[Any]) -> None:
        self.dataflow = replace(dataflow, tasks=tuple(replace(task, function=None) for task in dataflow.tasks))
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
    ) -> list[Departure | Answer]:
        """All rows of an epoch that come to one instance of a stage. ``state``: what the instance has of the state
        element, changed by this; ``instances``: how many send what is gathered."""
        rows, results = sorted(arrivals, key=attrgetter("sequence", "index", "instance")), Results()
        if self.gathers(stage):
            self.gather(rows, state, results, instances)
        else:
            kinds = sorted({(row.edge, row.method or "") for row in rows})
            numbers = {kind: number for number, kind in enumerate(kinds)}
            numbered = ((numbers[row.edge, row.method or ""], row.sequence, row.sent) for row in rows)
            self.serve(
                [(self.dataflow.edges[edge], method or None) for edge, method in kinds], numbered, state, results
            )
        return results.all

    def gather(self, rows: Iterable[Arrival], state: State | None, outlet: Outlet, instances: int) -> None:
        """As :meth:`run`, of a stage where rows of several instances come together; ``rows`` are in order."""
        work = StageRows(self.dataflow, self._functions, self._self, state, outlet)
        for sequence, together in groupby(rows, key=attrgetter("sequence")):
            work.gather(sequence, list(together), instances)

    def serve(
        self,
        kinds: Sequence[tuple[Edge, str | None]],
        rows: Iterable[tuple[int, int, Sequence[Any]]],
        state: State | None,
        outlet: Outlet,
    ) -> None:
        """As :meth:`run`, of a stage that gathers nothing. ``kinds``: edges, with the methods that fan-outs write by;
        ``rows``: which of these kinds each is of, its sequence and its values, in order."""
        work = StageRows(self.dataflow, self._functions, self._self, state, outlet)
        handlers = [work.handler(edge, method) for edge, method in kinds]
        for kind, sequence, values in rows:
            handlers[kind](sequence, values)

    def gathers(self, stage: Stage) -> bool:
        """Whether rows of several instances come together there."""
        return any(edge.dispatch is Dispatch.GATHER for edge in self._edges_into(stage))

    def _edges_into(self, stage: Stage) -> list[Edge]:
        return [edge for edge in self.dataflow.edges if edge.target in stage.tasks]

    def _compiled(self, task: TaskElement, program: type[Any]) -> Any:
        entry = declared(program).entries[task.entry]
        names = {CHECKS: entry.checks, CROSS: Crossing}
        assert task.function is not None
        return compiled(task.function, self.dataflow.file, {**entry.function.__globals__, **names})


def _constant(text: str) -> Any:
    return ast.literal_eval(text)
