"""``process_partial``: the author's function over partial state, with one instance in each subtask (SDG 3.2).

Rows are sent to any instance (local access), requests to all (global access), after the epoch's rows. A second
operator merges the answers of the instances to a request, behind a barrier (SDG 4.2): as all instances answer in the
same epoch, the barrier is the shuffle that collects their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from epochal.declarations.schemas import carried_schema, check_input_names
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import declared_states
from epochal.declarations.unkeyed import PartialProcess
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import (
    check_order,
    declared_output,
    declared_reconciles,
    declared_tables,
    nullable,
    side_outputs,
)
from epochal.operators.distribution import Distribution, Input, Subtasks, in_every_column, sorted_by_subtask
from epochal.operators.process.partial_work import (
    INSTANCE,
    REQUEST,
    REQUESTS,
    ROWS,
    AnswerColumns,
    MergeAnswersWork,
    ProcessPartialWork,
)
from epochal.state.table import Column
from epochal.tasks.subtask_rows import INPUT, InputColumns, carried_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ProcessPartialOperator(Operator):
    """An author's :class:`~epochal.declarations.unkeyed.PartialProcess`. ``has_requests``: requests are its first
    input."""

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
    """The columns of requests and answers; ``None`` without a merge. Raises ``PipelineError`` and ``SchemaError`` with
    operator and fix."""
    if process.answer is None:
        return None
    return AnswerColumns(nullable(carried_schema(requests.schema)), declared_output(operator, process.answer))


@dataclass(frozen=True)
class ProcessPartialPlan(OperatorPlan):
    """Sorts rows first, then requests, each by its order and then by all other columns."""

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
class MergeAnswersOperator(Operator):
    """The merge of answers of an author's :class:`~epochal.declarations.unkeyed.PartialProcess`.

    It expects one answer from each of its own number of subtasks, which is therefore that of the ``instances``, an
    operator.
    """

    kind: ClassVar[str] = "merge_answers"
    name: str
    process: type[PartialProcess]
    instances: str

    @property
    def scaled_as(self) -> str:
        return self.instances

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("answers", Distribution.BY_KEY, (REQUEST,)),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        from pyspark.sql.pandas.types import to_arrow_schema

        work = MergeAnswersWork(self.process, AnswerColumns.of(to_arrow_schema(frames[0].schema, timezone="UTC")))
        output = declared_output(self.name, self.process.output)
        return MergeAnswersPlan(self.name, self.inputs, (Column(name=REQUEST, type="bigint"),), (), work, output)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.process,)

    def details(self) -> dict[str, Any]:
        return {"class": self.process.__name__}


@dataclass(frozen=True)
class MergeAnswersPlan(OperatorPlan):
    """Sorts the answers to a request by instance."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return sorted_by_subtask(super().distributed(frames, subtasks), REQUEST, INSTANCE)
