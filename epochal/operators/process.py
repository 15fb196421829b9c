"""``process``: the author's function, once per key and epoch, over rows that stream in the order of the keys.

Only the calls themselves are made one by one. Key boundaries, rows, state and output are handled a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.keyed import KeyedProcess
from epochal.declarations.keys import key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import bind, declared_states
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import check_order, declared_output, declared_tables, side_outputs
from epochal.operators.distribution import Distribution, Input, Subtasks, sorted_by_subtask
from epochal.operators.keyed_calls import KeyedCalls
from epochal.state.type_names import quoted
from epochal.tasks.chunks import CHUNK_ROWS, whole_keys
from epochal.tasks.operator import Subtask
from epochal.tasks.read_only import read_only
from epochal.tasks.sides import Given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ProcessOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.KeyedProcess`."""

    kind: ClassVar[str] = "process"
    name: str
    keys: tuple[str, ...]
    process: type[KeyedProcess]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys),)

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        tables = declared_tables(self.name, self.process, key, frame)
        output = declared_output(self.name, self.process.output)
        work, order_by = ProcessWork(self.process, tuple(frame.columns)), self.process.order_columns()
        sides = side_outputs(self.name, self.process)
        return ProcessPlan(self.name, self.inputs, key, tables, work, output, order_by, sides=sides)

    def details(self) -> dict[str, Any]:
        states = list(declared_states(self.process))
        details = {"keys": list(self.keys), "class": self.process.__name__, "states": states}
        return {**details, "sides": list(self.sides)} if self.sides else details

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[0])


@dataclass(frozen=True)
class ProcessPlan(OperatorPlan):
    """Rows come sorted by key, and of a key by ``order_by``."""

    order_by: tuple[str, ...]

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        columns = map(quoted, (*self.inputs[0].keys, *self.order_by))
        return sorted_by_subtask(super().distributed(frames, subtasks), *columns)


@dataclass(frozen=True)
class ProcessWork:
    """``columns`` are the names of a row's columns, in the author's order.

    Raises ``AuthorError`` for what the author's code raises, with the key; ``SchemaError`` for what it gives that does
    not fit the output or a state.
    """

    process: type[KeyedProcess]
    columns: tuple[str, ...]
    chunk_rows: int = CHUNK_ROWS
    """About how many rows are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[Given]:
        calls = KeyedCalls(self.process, self.columns, subtask)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            for chunk in whole_keys(rows, subtask.key_names, self.chunk_rows):
                yield from calls.process(chunk)
