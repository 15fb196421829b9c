"""The second half of ``process_partial``: for each request the author's ``merge``, behind a barrier (SDG 4.2).

All instances have answered in the same epoch, so that the barrier is the shuffle which brings their answers together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.declarations.unkeyed import PartialProcess
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import author_object, declared_output
from epochal.operators.distribution import Distribution, Input, Subtasks, sorted_by_subtask
from epochal.state.table import Column
from epochal.tasks.answers import INSTANCE, REQUEST, AnswerColumns, gathered
from epochal.tasks.chunks import CHUNK_ROWS, whole_keys
from epochal.tasks.contexts import context_of
from epochal.tasks.operator import Subtask
from epochal.tasks.output import OutputRows
from epochal.tasks.read_only import read_only
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.sides import OutputBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class MergeAnswersOperator(Operator):
    """Of an author's :class:`~epochal.declarations.unkeyed.PartialProcess` that has ``merge``."""

    kind: ClassVar[str] = "merge_answers"
    name: str
    process: type[PartialProcess]

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
    """The answers to a request come in the order of the instances."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return sorted_by_subtask(super().distributed(frames, subtasks), REQUEST, INSTANCE)


@dataclass(frozen=True)
class MergeAnswersWork:
    """Raises ``AuthorError`` for what ``merge`` raises, with the request; ``SchemaError`` for what it gives."""

    process: type[PartialProcess]
    columns: AnswerColumns
    chunk_rows: int = CHUNK_ROWS
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        where, context = f"Operator {subtask.operator!r}", context_of(subtask)
        author, output = author_object(subtask.operator, self.process), OutputRows(subtask.operator, subtask.output)
        with read_only(author, where):
            for chunk in whole_keys(rows, (REQUEST,), self.chunk_rows):
                parallelism = subtask.ownership.parallelism
                for request, answers in gathered(subtask.operator, self.columns, chunk, parallelism):
                    with AuthorCall(partial("{}, request {}".format, where, request)):
                        output.add(author.merge(request, answers, context))
                yield from output.take()
