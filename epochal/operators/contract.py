"""The contract of operators: inputs, state, work in a task, output, description.

A node of the graph has an :class:`Operator`, which plans an :class:`OperatorPlan` over inputs with known columns. The
walks over a graph (analysis, evaluation, planning, description) use these two classes and know no kind of operator.
docs/architecture.md shows how to add an operator.
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
    """A stateful operator as its author declared it. Frozen; does not require Spark."""

    kind: ClassVar[str]
    """The kind in descriptions: ``aggregate``, ``process``, .."""
    internal_rows: ClassVar[bool] = False
    """True if only verbs of Epochal read the output, so that descriptions omit its columns."""
    name: str

    @property
    @abstractmethod
    def inputs(self) -> tuple[Input, ...]:
        """The inputs, in the order of the node's inputs."""

    @abstractmethod
    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        """Plan the operator over the columns of its inputs. The rows of ``frames`` are not read.

        Raises ``PipelineError`` or ``SchemaError`` with operator, column and fix.
        """

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """The description of the operator, without name and kind, as JSON."""

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        """The kind of the output stream for inputs of these kinds; by default append."""
        return APPEND

    @property
    def scaled_as(self) -> str:
        """The name under which its number of subtasks is configured. Operators of one name have the same number."""
        return self.name

    @property
    def hold(self) -> int:
        """The delay of the output's watermarks behind the operator's own, in microseconds: the event time of an output
        row is at most ``hold`` before ``fire``."""
        return 0

    @property
    def event_time_of_output(self) -> str | None:
        """The event-time column of the output; by default none."""
        return None

    def late_before(self, input: int, late: int) -> int | None:
        """The event time before which rows of ``inputs[input]`` are late under the watermark ``late``.

        Microseconds from the Unix epoch. The engine removes late rows before the task, counts them, and emits them to
        the operator's late stream. ``None``: no row is ever late.
        """
        return None

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of its side outputs."""
        return ()

    def computes_of(self, input: int) -> frozenset[str] | None:
        """The columns of ``inputs[input]`` that it reads, in lower case, in addition to those that the input names;
        ``None``: all."""
        return None

    def state_depends_on(self, input: int) -> frozenset[str] | None:
        """The columns of ``inputs[input]`` that its state is computed from, in lower case, without keys and event time;
        ``None``: all. An upgrade must accept a change of the meaning of one of them."""
        return self.computes_of(input)

    def keeps(self, input: int) -> bool:
        """True if its state depends on rows of ``inputs[input]``."""
        return True

    def passes_on(self, input: int) -> bool:
        """True if its output has columns of ``inputs[input]`` with their names and values."""
        return False

    @property
    def computed_columns(self) -> Mapping[str, Any]:
        """The output columns that it computes over its first input, by name: expressions, or an author's aggregates."""
        return {}

    @property
    def author_code(self) -> tuple[Any, ...]:
        """The classes and functions of the author that it calls."""
        return ()

    def may_be_late(self, input: int) -> bool:
        """True if rows of ``inputs[input]`` can be late."""
        return self.inputs[input].event_time is not None and self.late_before(input, 0) is not None

    def check(self, frames: Sequence[DataFrame]) -> None:  # noqa: B027  most operators have no further checks
        """Checks of the analysis beyond :meth:`plan`. Raises ``PipelineError`` with the fix."""

    @property
    def grows(self) -> str | None:
        """A message about state that grows with the number of keys, and how to bound it; ``None``: no state grows.

        Whether the number of keys is bounded depends on the application.
        """
        return None

    def warnings(self) -> Iterator[str]:
        """Warnings about valid but probably unintended or expensive declarations, with the fix."""
        return iter(())


@dataclass(frozen=True)
class OperatorPlan:
    """An operator over inputs with known columns, planned once in each attempt.

    ``output``: the columns that its task yields, without control columns; ``sides``: those of the side outputs, by
    name. Subclasses change how rows are distributed to tasks (:meth:`distributed`) and what Spark computes from the
    tasks' rows of ``output`` (:attr:`finishing`).
    """

    name: str
    inputs: tuple[Input, ...]
    key: tuple[Column, ...]
    tables: tuple[StateTable, ...]
    work: Work
    output: pa.Schema
    sides: Mapping[str, pa.Schema] = field(default_factory=dict, kw_only=True)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict, kw_only=True)
    """By id of a partial state table, the author's function that reconciles two instances, if any."""

    @property
    def aggregated_columns(self) -> int:
        """The number of columns that Spark aggregates over the rows of an epoch."""
        return 0

    @cached_property
    def task_output(self) -> TaskOutput:
        return TaskOutput(self.output, self.sides)

    @cached_property
    def task_schema(self) -> StructType:
        """The Spark schema of the rows that the task yields, including control columns."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.schema([*self.task_output.schema, *CONTROL]))

    def in_epoch(self, conditions: EpochConditions, queries: bytes) -> OperatorPlan:
        """The plan of one epoch. ``queries``: the active standing queries, empty if there have never been any."""
        return self

    def output_rows(self, rows: DataFrame) -> DataFrame:
        """The operator's output from all rows of its task, without the rows of sides and those with handles."""
        return self.finished(self._tagged(rows, None) if self.sides else rows.where(f"{HANDLE} IS NULL"))

    def side_rows(self, rows: DataFrame, side: str) -> DataFrame:
        """The rows of a side from all rows of the task."""
        return self._tagged(rows, side)

    def _tagged(self, rows: DataFrame, side: str | None) -> DataFrame:
        columns = self.task_output.columns(side)
        own = (f"{quoted(carried)} AS {quoted(name)}" for name, carried in columns.items())
        return rows.where(f"{SIDE} = {self.task_output.number(side)}").selectExpr(*own)

    @property
    def columns_of_task(self) -> Mapping[str, PassthroughColumn | None]:
        """By output column, in order, the equal column of the task's rows, which a sink can read in the same task;
        ``None`` for a column that Spark computes from these rows. Empty if all are computed."""
        kind = type(self)
        if self.sides or kind.finishing is not OperatorPlan.finishing or kind.finished is not OperatorPlan.finished:
            return {}
        return {name: PassthroughColumn(name) for name in self.output.names}

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        """The consecutive selects from the task's rows to the operator's output.

        The columns are reused in all epochs, as the creation of a column takes calls into the JVM.
        """
        return ([to_column(column(name)) for name in self.output.names],)

    def finished(self, rows: DataFrame) -> DataFrame:
        """The operator's output from its task's rows, without control columns."""
        for columns in self.finishing:
            rows = rows.select(*columns)
        return rows

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        """The inputs' rows, distributed to their subtasks, with marks and control columns, as ``work`` requires."""
        return placed(united(frames, self.inputs, self.key, subtasks), subtasks)

    def located(self, frames: Sequence[DataFrame]) -> EpochalError | None:
        """The error with the column of a computation that failed in Spark; ``None`` if this operator did not fail.

        ``frames``: the inputs' rows of the failed epoch.
        """
        return None
