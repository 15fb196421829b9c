"""``process_any``: the author's function once per subtask and epoch, over rows that stream, with state of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.schemas import check_input_names
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import bind, declared_states
from epochal.declarations.unkeyed import UnkeyedProcess
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import author_object, check_order, declared_output, declared_tables, side_outputs
from epochal.operators.distribution import Distribution, Input, Subtasks, in_every_column, sorted_by_subtask
from epochal.tasks.chunks import CHUNK_ROWS
from epochal.tasks.contexts import context_of
from epochal.tasks.keys import named_rows
from epochal.tasks.operator import Subtask
from epochal.tasks.output import OutputRows, given_in_parts
from epochal.tasks.read_only import read_only
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.sides import OutputBatch
from epochal.tasks.subtask_list import SubtaskList

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ProcessAnyOperator(Operator):
    """An author's :class:`~epochal.declarations.unkeyed.UnkeyedProcess`."""

    kind: ClassVar[str] = "process_any"
    name: str
    process: type[UnkeyedProcess]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.TO_ANY, order_by=self.process.order_columns()),)

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        check_input_names(self.name, frame.schema)
        tables = declared_tables(self.name, self.process, (), frame)
        output = declared_output(self.name, self.process.output)
        work = ProcessAnyWork(self.process, tuple(frame.columns))
        sides = side_outputs(self.name, self.process)
        return ProcessAnyPlan(self.name, self.inputs, (), tables, work, output, sides=sides)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.process,)

    def details(self) -> dict[str, Any]:
        details = {"class": self.process.__name__, "states": list(declared_states(self.process))}
        return {**details, "sides": list(self.sides)} if self.sides else details

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[0])


@dataclass(frozen=True)
class ProcessAnyPlan(OperatorPlan):
    """The rows of a subtask come sorted by ``order_by`` and then by all other columns: a shuffle mixes them."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        columns = in_every_column(frames[0], self.inputs[0].order_by)
        return sorted_by_subtask(super().distributed(frames, subtasks), *columns)


@dataclass(frozen=True)
class ProcessAnyWork:
    """``columns`` are the names of a row's columns, in the author's order.

    Raises ``AuthorError`` for what the author's code raises; ``SchemaError`` for what it gives that does not fit the
    output or a state.
    """

    process: type[UnkeyedProcess]
    columns: tuple[str, ...]
    chunk_rows: int = CHUNK_ROWS
    """So many rows, of the input and of the output, are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        author, states = self._author(subtask)
        context = context_of(subtask)
        output = OutputRows(subtask.operator, subtask.output, subtask.sides)
        named = self._named(rows)
        where = f"Operator {subtask.operator!r}"
        with AuthorCall(lambda: f"{where}, subtask {subtask.subtask}"), read_only(author, where):
            for part in given_in_parts(author.process(named, context), self.chunk_rows):
                output.add(part)
                yield from output.take()
        for _ in named:
            """What the author has left unread belongs to this subtask all the same."""
        for state in states:
            changes = state.changes()
            if changes is not None:
                subtask.transaction.stage(state.table.id, changes)

    def _author(self, subtask: Subtask) -> tuple[UnkeyedProcess, list[SubtaskList]]:
        tables = {table.id: table for table in subtask.tables}
        states = {}
        for name in declared_states(self.process):
            table = tables[f"{subtask.operator}.{name}"]
            states[name] = SubtaskList(table, subtask.transaction.view(table.id), subtask.ownership)
        author = author_object(subtask.operator, self.process)
        bind(author, states)
        return author, list(states.values())

    def _named(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        for batch in rows:
            for first in range(0, batch.num_rows, self.chunk_rows):
                yield from named_rows("Row", batch.slice(first, self.chunk_rows), self.columns)
