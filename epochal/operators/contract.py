"""What an operator is to everybody else: its inputs, its state, its work in a task, its output, and what to say of it.

A node of the graph carries an :class:`Operator`; over inputs of known columns that gives an :class:`OperatorPlan`. The
walks over a graph (analysis, evaluation, planning, description) ask these two and never what kind an operator is, so
that another kind is one more module beside this one. docs/architecture.md shows how to add one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.contracts.conditions import EpochConditions
from epochal.contracts.stream_kind import APPEND, StreamKind
from epochal.declarations.expressions import column, to_column
from epochal.declarations.reconcile import Reconcile
from epochal.operators.distribution import Input as Input
from epochal.operators.distribution import Subtasks, placed, united
from epochal.state.table import Column, StateTable
from epochal.state.type_names import quoted
from epochal.tasks.operator import CONTROL, HANDLE, Work
from epochal.tasks.task_output import SIDE, PassthroughColumn, TaskOutput

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from epochal.errors import EpochalError


class Operator(ABC):
    """A stateful operator as its author declared it. Frozen; known without Spark."""

    kind: ClassVar[str]
    """``aggregate``, ``process``, ..: what people read in descriptions."""
    internal_rows: ClassVar[bool] = False
    """Whether its output is for verbs of its own alone, so that nobody is shown its columns."""
    name: str

    @property
    @abstractmethod
    def inputs(self) -> tuple[Input, ...]:
        """In the order of the node's inputs."""

    @abstractmethod
    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        """Plan the operator over its inputs, whose rows do not matter.

        Raises ``PipelineError`` or ``SchemaError`` that names operator, column and fix.
        """

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What its description says beside name and kind, as JSON."""

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        """The kind of its output, from those of its inputs: by default rows that stay."""
        return APPEND

    @property
    def hold(self) -> int:
        """So far behind its own watermarks are those of its output, in microseconds: a row that it gives out happened
        at most so long before ``fire``."""
        return 0

    @property
    def event_time_of_output(self) -> str | None:
        """The column of its output that says when a row happened; by default there is none."""
        return None

    def late_before(self, input: int, late: int) -> int | None:
        """The event time before which rows of ``inputs[input]`` are late under the watermark ``late``.

        Microseconds from the Unix epoch. The engine keeps late rows from the task, counts them, and serves the
        operator's late stream from them. ``None``: no row is ever late.
        """
        return None

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of what it gives beside its output, to streams of their own."""
        return ()

    def computes_of(self, input: int) -> frozenset[str] | None:
        """The columns of ``inputs[input]`` that it looks into, in small letters, beside those that the input names;
        ``None``: all."""
        return None

    def state_depends_on(self, input: int) -> frozenset[str] | None:
        """The columns of ``inputs[input]`` that its state is made of, in small letters, beside keys and event time;
        ``None``: all. Another meaning of one of them is a change that an upgrade has to accept."""
        return self.computes_of(input)

    def keeps(self, input: int) -> bool:
        """Whether its state is made of rows of ``inputs[input]`` at all."""
        return True

    def passes_on(self, input: int) -> bool:
        """Whether its output has columns of ``inputs[input]`` under their names, with their values."""
        return False

    @property
    def computed_columns(self) -> Mapping[str, Any]:
        """Output columns that it computes over its first input, by name: expressions, or an author's own aggregates."""
        return {}

    @property
    def author_code(self) -> tuple[Any, ...]:
        """Classes and functions of the author that it calls."""
        return ()

    def may_be_late(self, input: int) -> bool:
        """Whether rows of ``inputs[input]`` can come too late."""
        return self.inputs[input].event_time is not None and self.late_before(input, 0) is not None

    def check(self, frames: Sequence[DataFrame]) -> None:  # noqa: B027  most have nothing more to ask
        """What analysis asks beyond :meth:`plan`. Raises ``PipelineError`` with the fix."""

    @property
    def grows(self) -> str | None:
        """What of its state grows with the keys that come, and what would bound it; ``None``: nothing does.

        Whether keys have an end is for the author to know.
        """
        return None

    def warnings(self) -> Iterator[str]:
        """What is valid and probably not meant, or costs more than it looks, with what to do."""
        return iter(())


@dataclass(frozen=True)
class OperatorPlan:
    """An operator over inputs of known columns; found once in each attempt.

    ``output`` is what its task gives, without control columns; ``sides``: what it gives beside, by name. Subclasses
    change how rows come to the task (:meth:`distributed`) and what is computed from the task's rows of ``output``
    (:attr:`finishing`).
    """

    name: str
    inputs: tuple[Input, ...]
    key: tuple[Column, ...]
    tables: tuple[StateTable, ...]
    work: Work
    output: pa.Schema
    sides: Mapping[str, pa.Schema] = field(default_factory=dict, kw_only=True)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict, kw_only=True)
    """By partial state table, by its id, how two instances become one, where that is the author's code."""

    @property
    def aggregated_columns(self) -> int:
        """Number of columns that Spark aggregates over the rows of an epoch."""
        return 0

    @cached_property
    def task_output(self) -> TaskOutput:
        return TaskOutput(self.output, self.sides)

    @cached_property
    def task_schema(self) -> StructType:
        """What the task yields, control columns included, as Spark spells it."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.schema([*self.task_output.schema, *CONTROL]))

    def in_epoch(self, conditions: EpochConditions, queries: bytes) -> OperatorPlan:
        """The plan of one epoch. ``queries``: the standing queries in force, empty where there were never any."""
        return self

    def output_rows(self, rows: DataFrame) -> DataFrame:
        """The operator's output from all that its task gives: without the rows of sides and those with handles."""
        return self.finished(self._tagged(rows, None) if self.sides else rows.where(f"{HANDLE} IS NULL"))

    def side_rows(self, rows: DataFrame, side: str) -> DataFrame:
        """The rows of a side from all that its task gives."""
        return self._tagged(rows, side)

    def _tagged(self, rows: DataFrame, side: str | None) -> DataFrame:
        columns = self.task_output.columns(side)
        own = (f"{quoted(carried)} AS {quoted(name)}" for name, carried in columns.items())
        return rows.where(f"{SIDE} = {self.task_output.number(side)}").selectExpr(*own)

    @property
    def columns_of_task(self) -> Mapping[str, PassthroughColumn] | None:
        """By the name of each column of the output, in their order, the column of the task's rows that it is; ``None``
        where Spark computes something of these rows, so that a sink cannot have them from the task itself."""
        kind = type(self)
        if self.sides or kind.finishing is not OperatorPlan.finishing or kind.finished is not OperatorPlan.finished:
            return None
        return {name: PassthroughColumn(name) for name in self.output.names}

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        """The selects, one after the other, from the task's rows to the operator's output.

        The same columns serve in any number of epochs, as each costs calls into the JVM.
        """
        return ([to_column(column(name)) for name in self.output.names],)

    def finished(self, rows: DataFrame) -> DataFrame:
        """The operator's output from its task's rows; control columns are left out."""
        for columns in self.finishing:
            rows = rows.select(*columns)
        return rows

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        """The inputs' rows at their subtasks, with marks and control columns, as ``work`` needs them."""
        return placed(united(frames, self.inputs, self.key, subtasks), subtasks)

    def located(self, frames: Sequence[DataFrame]) -> EpochalError | None:
        """After a computation failed in Spark: the error that names the column; ``None`` when it was not here.

        ``frames``: the inputs' rows of the failed epoch.
        """
        return None
