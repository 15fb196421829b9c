"""``process`` beside a control stream: every subtask takes all control rows, then each of its keys' rows.

Control rows write broadcast state, the same on every subtask: each computes it, subtask 0 keeps it, and a digest of it
in the handles shows that all came to the same (E3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.keyed import BroadcastProcess, broadcast_states
from epochal.declarations.schemas import check_input_names, key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import bind, declared_states
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import (
    check_order,
    declared_output,
    declared_tables,
    growing_states,
    side_outputs,
    spelled,
)
from epochal.operators.distribution import Distribution, Input, Subtasks, in_every_column, sorted_by_subtask
from epochal.operators.keyed_calls import KeyedCalls
from epochal.state.type_names import quoted
from epochal.tasks.broadcast_state import BroadcastState, ControlRows, broadcast_state, digest_of
from epochal.tasks.calls import INPUT, KEY_GROUP
from epochal.tasks.chunks import CHUNK_ROWS, whole_keys
from epochal.tasks.inputs import InputColumns, by_input, carried_name
from epochal.tasks.keys import named_rows
from epochal.tasks.operator import Subtask
from epochal.tasks.read_only import read_only
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.sides import OutputBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATA, CONTROL = 0, 1
_CARRIED = re.compile(r"_\d+_.*")


@dataclass(frozen=True)
class ProcessBroadcastOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.BroadcastProcess`.

    ``control_order``: the columns that the control rows are taken in the order of.
    """

    kind: ClassVar[str] = "process_broadcast"
    name: str
    keys: tuple[str, ...]
    control_order: tuple[str, ...]
    process: type[BroadcastProcess]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input("rows", Distribution.BY_KEY, self.keys, order_by=self.process.order_columns()),
            Input("control", Distribution.TO_ALL, order_by=self.control_order),
        )

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        data, control = frames
        key = key_columns(self.name, self.keys, data.schema)
        check_input_names(self.name, control.schema)
        for column in key:
            if _CARRIED.fullmatch(column.name):
                raise PipelineError(
                    f"Operator {self.name!r}: a key column of connected streams cannot be named {column.name!r}, as "
                    "Epochal names the columns of inputs so. Rename it."
                )
        tables = declared_tables(self.name, self.process, key, data)
        declared_tables(self.name, self.process, key, control)
        output = declared_output(self.name, self.process.output)
        names = tuple(column.name for column in key)
        work = ProcessBroadcastWork(
            self.process,
            InputColumns.of(DATA, data.columns, self.keys, names),
            InputColumns.of(CONTROL, control.columns),
        )
        sides = side_outputs(self.name, self.process)
        return ProcessBroadcastPlan(self.name, self.inputs, key, tables, work, output, sides=sides)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.process,)

    def details(self) -> dict[str, Any]:
        return {
            "keys": list(self.keys),
            "class": self.process.__name__,
            "states": list(declared_states(self.process)),
            "broadcast": list(broadcast_states(self.process)),
            "control order": list(self.control_order),
            **({"sides": list(self.sides)} if self.sides else {}),
        }

    @property
    def grows(self) -> str | None:
        return growing_states(self.process, "with ttl='7 days'")

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[DATA])
        check_order(self.name, self.control_order, frames[CONTROL])


@dataclass(frozen=True)
class ProcessBroadcastPlan(OperatorPlan):
    """Of a subtask, control rows come first; then rows sorted by key, and of a key by ``order_by``."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        from pyspark.sql import functions as F

        data, control = self.inputs
        keyed = {name.casefold(): column.name for name, column in zip(data.keys, self.key, strict=True)}
        order = [keyed.get(name.casefold(), carried_name(DATA, name)) for name in (*data.keys, *data.order_by)]
        rows = super().distributed(frames, subtasks)
        return sorted_by_subtask(
            rows,
            F.col(INPUT).desc(),  # control rows first
            *map(quoted, order),
            *in_every_column(frames[CONTROL], control.order_by, lambda name: carried_name(CONTROL, name)),
        )


@dataclass(frozen=True)
class ProcessBroadcastWork:
    """Raises what ``process`` raises, and ``AuthorError`` for what ``process_broadcast`` does, with the control row."""

    process: type[BroadcastProcess]
    data: InputColumns
    control: InputColumns
    chunk_rows: int = CHUNK_ROWS
    """About how many rows are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        calls = _Calls(self.process, self.data.names, subtask)
        where = f"Operator {subtask.operator!r}"
        runs = by_input(rows)
        data: list[pa.RecordBatch] = []
        bind(calls.author, calls.broadcast)
        with read_only(calls.author, where):
            for number, run in runs:
                if number == DATA:
                    data.append(run)
                    break
                calls.control_rows(self.control.own(run), self.control.names)
        output = list(calls.control_ends())
        if subtask.subtask == 0:
            yield from output
        bind(calls.author, calls.states)
        with read_only(calls.author, where):
            key = spelled(self.data.names, subtask.key_names)
            for chunk in whole_keys(self._data(data, runs), key, self.chunk_rows):
                yield from calls.process(chunk)

    def _data(
        self, first: list[pa.RecordBatch], others: Iterator[tuple[int, pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        for run in first:
            yield self.data.own(run, KEY_GROUP)
        for _, run in others:
            yield self.data.own(run, KEY_GROUP)


class _Calls(KeyedCalls):
    """The author's object in one subtask: first for control rows, then for keys."""

    author: BroadcastProcess

    def __init__(self, process: type[BroadcastProcess], columns: Sequence[str], subtask: Subtask) -> None:
        self.broadcast: dict[str, BroadcastState] = {}
        self._control = ControlRows()
        tables = {table.id: table for table in subtask.tables}
        for name in broadcast_states(process):
            table = tables[f"{subtask.operator}.{name}"]
            view = subtask.transaction.view(table.id)
            self.broadcast[name] = broadcast_state(table, view, subtask.max_parallelism, self._control)
        super().__init__(process, columns, subtask)
        self.states = {**self.keyed, **self.broadcast}

    def control_rows(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        for row in named_rows("Row", batch, names):
            with AuthorCall(partial("Operator {!r}, control row {}".format, self._subtask.operator, row)):
                self._output.add(self.author.process_broadcast(row, self._context))

    def control_ends(self) -> Iterator[OutputBatch]:
        """What the control rows gave. What they wrote is staged by subtask 0, for all; all say what it is."""
        self._control.taken = True
        changes = [(state.table, rows) for state in self.broadcast.values() if (rows := state.changes()) is not None]
        self._subtask.agreement.digest = digest_of(changes)
        if self._subtask.subtask == 0:
            for table, rows in changes:
                self._subtask.transaction.stage(table.id, rows)
        return self._output.take()
