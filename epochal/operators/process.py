"""``process``: the author's function, once per key and epoch, over rows that stream in the order of the keys.

Only the calls themselves are made one by one. Key boundaries, rows, state and output are handled a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.feedback import HOP, HOP_COLUMN
from epochal.declarations.keyed import KeyedProcess, has_timers
from epochal.declarations.schemas import key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import bind, declared_states
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import (
    check_order,
    declared_output,
    declared_tables,
    growing_states,
    named,
    output_names,
    side_outputs,
    spelled,
)
from epochal.operators.distribution import Distribution, Input, Subtasks, sorted_by_subtask
from epochal.operators.keyed_calls import KeyedCalls
from epochal.operators.timed_calls import TimedCalls
from epochal.state.type_names import quoted
from epochal.tasks.calls import KEY_GROUP
from epochal.tasks.chunks import CHUNK_ROWS, Chunk, whole_keys
from epochal.tasks.operator import Subtask
from epochal.tasks.read_only import read_only
from epochal.tasks.sides import OutputBatch
from epochal.tasks.stored_timers import timer_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ProcessOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.KeyedProcess`."""

    kind: ClassVar[str] = "process"
    name: str
    keys: tuple[str, ...]
    process: type[KeyedProcess]
    event_time: str | None = None
    """The column of its input that says when a row happened."""
    hold: int = 0
    hops: bool = False
    """Its rows come out of a loop that counts hops."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, event_time=self.event_time),)

    @property
    def event_time_of_output(self) -> str | None:
        return named(self.event_time, output_names(self.process.output))

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        key = key_columns(self.name, self.keys, frame.schema)
        tables = declared_tables(self.name, self.process, key, frame)
        output = declared_output(self.name, self.process.output)
        columns, hops = tuple(frame.columns), self.hops and HOP in frame.columns and HOP not in output.names
        if hops:
            columns, output = tuple(name for name in columns if name != HOP), output.append(HOP_COLUMN.to_arrow())
        work = ProcessWork(self.process, columns, named(self.event_time, columns), hops=hops)
        order_by = self.process.order_columns()
        sides = side_outputs(self.name, self.process)
        if work.has_timers:
            tables += timer_tables(self.name, key, self.event_time is not None)
        return ProcessPlan(self.name, self.inputs, key, tables, work, output, order_by, sides=sides)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.process,)

    def details(self) -> dict[str, Any]:
        states = list(declared_states(self.process))
        details = {"keys": list(self.keys), "class": self.process.__name__, "states": states}
        if has_timers(self.process):
            details["timers"] = self._timers()
        return {**details, "sides": list(self.sides)} if self.sides else details

    @property
    def grows(self) -> str | None:
        return growing_states(self.process, "with ttl='7 days'")

    def _timers(self) -> str:
        return "processing time" if self.event_time is None else f"event time ({self.event_time}), processing time"

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[0])


@dataclass(frozen=True)
class ProcessPlan(OperatorPlan):
    """Rows come sorted by key, and of a key by ``order_by``. Where there are timers, those of a key group lie together:
    in this order timers are merged with them."""

    order_by: tuple[str, ...]
    work: ProcessWork

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        first = (KEY_GROUP,) if self.work.has_timers else ()
        columns = map(quoted, (*first, *self.inputs[0].keys, *self.order_by))
        return sorted_by_subtask(super().distributed(frames, subtasks), *columns)


@dataclass(frozen=True)
class ProcessWork:
    """``columns`` are the names of a row's columns, in the author's order, the key's as the input spells them.

    Raises ``AuthorError`` for what the author's code raises, with the key; ``SchemaError`` for what it gives that does
    not fit the output or a state.
    """

    process: type[KeyedProcess]
    columns: tuple[str, ...]
    event_time: str | None = None
    chunk_rows: int = CHUNK_ROWS
    """About how many rows are Python objects at a time."""
    hops: bool = False
    """Rows have come out of a loop that counts hops: what is given for a key has the highest of its rows'."""
    needs_order: ClassVar[bool] = True

    @property
    def has_timers(self) -> bool:
        return has_timers(self.process)

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        chunks = whole_keys(rows, spelled(self.columns, subtask.key_names), self.chunk_rows)
        if self.has_timers:
            yield from self._run_with_timers(subtask, chunks)
            return
        calls = KeyedCalls(self.process, self.columns, subtask, self.event_time, self.hops)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            for chunk in chunks:
                yield from calls.process(chunk)

    def _run_with_timers(self, subtask: Subtask, chunks: Iterator[Chunk]) -> Iterator[OutputBatch]:
        interleaved = named(self.event_time, self.process.order_columns()[:1]) is not None
        calls = TimedCalls(self.process, self.columns, subtask, self.event_time, interleaved, self.hops)
        bind(calls.author, calls.keyed)
        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            yield from calls.run(chunks, self.chunk_rows)
