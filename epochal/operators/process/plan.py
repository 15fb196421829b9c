"""``process``, ``process_any`` and ``process_batch``: authors' functions per key, per subtask, and over Arrow
tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from epochal.declarations.feedback import HOP, HOP_COLUMN
from epochal.declarations.keyed import BatchFunction, KeyedProcess, has_timers
from epochal.declarations.schemas import check_input_names, key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import declared_states
from epochal.declarations.unkeyed import UnkeyedProcess
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import (
    check_order,
    declared_output,
    declared_tables,
    growing_states,
    output_names,
    side_outputs,
)
from epochal.operators.distribution import Distribution, Input, Subtasks, in_every_column, sorted_by_subtask
from epochal.operators.process.any_work import ProcessAnyWork
from epochal.operators.process.batch_work import ProcessBatchWork
from epochal.operators.process.stored_timers import timer_tables
from epochal.operators.process.work import ProcessWork
from epochal.state.type_names import quoted
from epochal.tasks.keys import named
from epochal.tasks.subtask_rows import KEY_GROUP

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
    """The event-time column of its input."""
    hold: int = 0
    hops: bool = False
    """True if its input comes from a loop that counts hops."""

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
    """Sorts rows by key, and the rows of a key by ``order_by``. With timers, rows are sorted by key group first, so
    that timers can be merged with them."""

    order_by: tuple[str, ...]
    work: ProcessWork

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        first = (KEY_GROUP,) if self.work.has_timers else ()
        columns = map(quoted, (*first, *self.inputs[0].keys, *self.order_by))
        return sorted_by_subtask(super().distributed(frames, subtasks), *columns)


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
    """Sorts the rows of a subtask by ``order_by`` and then by all other columns, as a shuffle changes their order."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        columns = in_every_column(frames[0], self.inputs[0].order_by)
        return sorted_by_subtask(super().distributed(frames, subtasks), *columns)


@dataclass(frozen=True)
class ProcessBatchOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.BatchFunction`. Its rows have no order."""

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
