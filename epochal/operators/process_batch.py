"""``process_batch``: the author's function once per subtask and epoch, Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.keyed import BatchFunction
from epochal.declarations.schemas import key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import declared_states
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import declared_output, declared_tables, growing_states, side_outputs
from epochal.operators.distribution import Distribution, Input
from epochal.state.access import TableAccess
from epochal.tasks.batch_state import SubtaskBatchState
from epochal.tasks.contexts import context_of
from epochal.tasks.operator import Subtask
from epochal.tasks.output import checked_tables
from epochal.tasks.read_only import read_only
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.sides import OutputBatch, SideRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ProcessBatchOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.BatchFunction`. Its rows come in any order."""

    kind: ClassVar[str] = "process_batch"
    name: str
    keys: tuple[str, ...]
    function: BatchFunction

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys),)

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(type(self.function)))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        tables = declared_tables(self.name, type(self.function), key, frame)
        output = declared_output(self.name, self.function.output)
        work = ProcessBatchWork(self.function, tuple(frame.columns))
        sides = side_outputs(self.name, type(self.function))
        return OperatorPlan(self.name, self.inputs, key, tables, work, output, sides=sides)

    @property
    def grows(self) -> str | None:
        return growing_states(type(self.function), "in a KeyedProcess, with ttl='7 days'")

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.function,)

    def details(self) -> dict[str, Any]:
        function = type(self.function)
        details = {"keys": list(self.keys), "class": function.__name__, "states": list(declared_states(function))}
        return {**details, "sides": list(self.sides)} if self.sides else details


@dataclass(frozen=True)
class ProcessBatchWork:
    """``columns`` are the names of the columns that the function sees, in the author's order.

    The function is called in every epoch, also with no rows. Raises ``AuthorError`` for what it raises, ``SchemaError``
    and ``InvalidKey`` for what it gives that does not fit.
    """

    function: BatchFunction
    columns: tuple[str, ...]
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        batch = pa.Table.from_batches(list(rows)).select(self.columns).combine_chunks()
        states = self._states(subtask)
        context = context_of(subtask)
        where = f"Operator {subtask.operator!r}"
        with AuthorCall(lambda: where), read_only(self.function, where):
            result = self.function.process_batch(batch, states, context)
            if isinstance(result, GeneratorType):
                result = list(result)
        output = list(checked_tables(subtask.operator, result, subtask.output, subtask.sides))
        for state in states.values():
            changes = state.changes()
            if changes is not None:
                subtask.transaction.stage(state.table.id, changes)
        for side, table in output:
            for rows_given in table.to_batches():
                yield rows_given if side is None else SideRows(side, rows_given)

    def _states(self, subtask: Subtask) -> dict[str, SubtaskBatchState]:
        tables = {table.id: table for table in subtask.tables}
        states = {}
        for name in declared_states(type(self.function)):
            table = tables[f"{subtask.operator}.{name}"]
            access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
            states[name] = SubtaskBatchState(table, access, subtask.ownership)
        return states
