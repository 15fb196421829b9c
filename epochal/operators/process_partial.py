"""``process_partial``: the author's function over partial state, an instance of it in each subtask (SDG 3.2).

Rows come to any instance (local access), requests to all (global access), after the epoch's rows. What the instances
answer is merged by :mod:`epochal.operators.merge_answers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.schemas import carried_schema, check_input_names
from epochal.declarations.sides import To, declared_sides
from epochal.declarations.state import bind, declared_states
from epochal.declarations.unkeyed import PartialProcess
from epochal.errors import SchemaError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import (
    author_object,
    check_order,
    declared_output,
    declared_reconciles,
    declared_tables,
    nullable,
    side_outputs,
)
from epochal.operators.distribution import Distribution, Input, Subtasks, in_every_column, sorted_by_subtask
from epochal.tasks.answers import AnswerColumns, InstanceAnswers
from epochal.tasks.calls import INPUT
from epochal.tasks.chunks import CHUNK_ROWS
from epochal.tasks.contexts import context_of
from epochal.tasks.inputs import InputColumns, by_input, carried_name
from epochal.tasks.keys import named_rows
from epochal.tasks.operator import Subtask
from epochal.tasks.output import OutputRows, given_in_parts, shortened
from epochal.tasks.partial_state import InstanceState, instance_state
from epochal.tasks.read_only import read_only
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.sides import OutputBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REQUESTS, ROWS = 0, 1
"""Inputs, where there are requests. A subtask has the rows of the later one first."""


@dataclass(frozen=True)
class ProcessPartialOperator(Operator):
    """An author's :class:`~epochal.declarations.unkeyed.PartialProcess`. ``has_requests``: they are its first input."""

    kind: ClassVar[str] = "process_partial"
    name: str
    process: type[PartialProcess]
    has_requests: bool = False

    @property
    def inputs(self) -> tuple[Input, ...]:
        rows = Input("rows", Distribution.TO_ANY, order_by=self.process.order_columns())
        if not self.has_requests:
            return (rows,)
        return (Input("requests", Distribution.TO_ALL, order_by=self.process.request_columns()), rows)

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        for frame in frames:
            check_input_names(self.name, frame.schema)
        tables = declared_tables(self.name, self.process, (), frames[-1])
        output = declared_output(self.name, self.process.output)
        work = ProcessPartialWork(self.process, tuple(frames[-1].columns))
        if self.has_requests:
            requests, rows = (InputColumns.of(number, frame.columns) for number, frame in enumerate(frames))
            answers = answer_columns(self.name, self.process, frames[REQUESTS])
            work = ProcessPartialWork(self.process, rows.names, rows, requests, answers)
            output = output if answers is None else answers.carried
        sides, reconcile = side_outputs(self.name, self.process), declared_reconciles(self.name, self.process)
        return ProcessPartialPlan(self.name, self.inputs, (), tables, work, output, sides=sides, reconcile=reconcile)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.process,)

    def details(self) -> dict[str, Any]:
        return {
            "class": self.process.__name__,
            "states": list(declared_states(self.process)),
            **({"requests": "to all"} if self.has_requests else {}),
            **({"sides": list(self.sides)} if self.sides else {}),
        }

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[-1])
        if self.has_requests:
            check_order(self.name, self.process.request_columns(), frames[REQUESTS])


def answer_columns(operator: str, process: type[PartialProcess], requests: DataFrame) -> AnswerColumns | None:
    """``None``: nothing is merged. Raises ``PipelineError`` and ``SchemaError`` with operator and fix."""
    if process.answer is None:
        return None
    return AnswerColumns(nullable(carried_schema(requests.schema)), declared_output(operator, process.answer))


@dataclass(frozen=True)
class ProcessPartialPlan(OperatorPlan):
    """Of a subtask its rows come first, and then the requests; each sorted by its order and then all other columns."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        from pyspark.sql import functions as F

        rows = super().distributed(frames, subtasks)
        if len(frames) == 1:
            return sorted_by_subtask(rows, *in_every_column(frames[0], self.inputs[0].order_by))
        columns = [
            column
            for number in (ROWS, REQUESTS)
            for column in in_every_column(frames[number], self.inputs[number].order_by, partial(carried_name, number))
        ]
        return sorted_by_subtask(rows, F.col(INPUT).desc(), *columns)


@dataclass(frozen=True)
class ProcessPartialWork:
    """``names`` are those of a row's columns, in the author's order; ``rows`` and ``requests`` how they are carried
    where there are requests, and ``answers`` what is given where they are merged.

    Raises what ``process`` of ``process_any`` raises, and ``AuthorError`` for what ``process_global`` does, with the
    request.
    """

    process: type[PartialProcess]
    names: tuple[str, ...]
    rows: InputColumns | None = None
    requests: InputColumns | None = None
    answers: AnswerColumns | None = None
    chunk_rows: int = CHUNK_ROWS
    """So many rows, of the inputs and of the output, are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        calls = _Calls(self, subtask)
        first_requests: list[pa.RecordBatch] = []
        runs = ((ROWS, batch) for batch in rows) if self.rows is None else by_input(rows)

        def own_rows() -> Iterator[pa.RecordBatch]:
            for number, run in runs:
                if number == REQUESTS:
                    first_requests.append(run)
                    return
                yield run if self.rows is None else self.rows.own(run)

        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            yield from calls.local(own_rows())
            if self.requests is not None:
                for run in chain(first_requests, (run for _, run in runs)):
                    for part in _parts(self.requests.own(run), self.chunk_rows):
                        yield from calls.all(part)
        calls.stage()


class _Calls:
    """The author's object in one subtask, with its instance of each state."""

    def __init__(self, work: ProcessPartialWork, subtask: Subtask) -> None:
        self._work = work
        self._subtask = subtask
        self._context = context_of(subtask)
        tables = {table.id: table for table in subtask.tables}
        self._states: dict[str, InstanceState] = {}
        for name in declared_states(work.process):
            table = tables[f"{subtask.operator}.{name}"]
            self._states[name] = instance_state(table, subtask.transaction.view(table.id), subtask.ownership)
        answers, name = work.answers, subtask.operator
        self._answers = None if answers is None else InstanceAnswers(name, answers, subtask.subtask)
        self._output = OutputRows(name, subtask.output, subtask.sides)
        self.author = author_object(subtask.operator, work.process)
        bind(self.author, self._states)

    def local(self, batches: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        """Local access: one call, with all rows of the instance."""
        rows = self._named(batches)
        with AuthorCall(lambda: f"Operator {self._subtask.operator!r}, subtask {self._subtask.subtask}"):
            result = self.author.process(rows, self._context)
            for part in given_in_parts(result, self._work.chunk_rows):
                self._output.add(part if self._answers is None else self._to_sides(part))
                yield from self._output.take()
        for _ in rows:
            """What the author has left unread belongs to this subtask all the same."""

    def all(self, requests: pa.RecordBatch) -> Iterator[OutputBatch]:
        """Global access: a call for each request."""
        work = self._work
        assert work.requests is not None  # there are some
        for request in named_rows("Request", requests, work.requests.names):
            with AuthorCall(partial("Operator {!r}, request {}".format, self._subtask.operator, request)):
                result = self.author.process_global(request, self._context)
                if self._answers is None:
                    self._output.add(result)
                elif isinstance(result, (GeneratorType, list)):
                    raise SchemaError(
                        f"Operator {self._subtask.operator!r}: process_global returned {shortened(result)}: where "
                        "answers are merged it returns one, a tuple or a dict of its columns, or None; it yields "
                        "nothing."
                    )
                else:
                    self._answers.add(result)
        if self._answers is None:
            yield from self._output.take()
        else:
            yield self._answers.take(requests)

    def stage(self) -> None:
        for state in self._states.values():
            changes = state.changes()
            if changes is not None:
                self._subtask.transaction.stage(state.table.id, changes)

    def _named(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        for batch in batches:
            for part in _parts(batch, self._work.chunk_rows):
                yield from named_rows("Row", part, self._work.names)

    def _to_sides(self, rows: Iterable[Any] | None) -> list[Any] | None:
        if rows is None:
            return None
        to_sides = list(rows)
        for row in to_sides:
            if type(row) is not To:
                raise SchemaError(
                    f"Operator {self._subtask.operator!r}: process gave {shortened(row)}, but the output is what merge "
                    "gives. Declare a side, and yield To(side, row)."
                )
        return to_sides


def _parts(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
