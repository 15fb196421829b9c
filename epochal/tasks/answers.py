"""What the instances of partial state answer to requests, on its way to where it is merged.

A row for each request and instance: the request's position in the epoch, which is the same in all instances; the
instance's number; the request's columns, in the row of instance 0 alone; and the columns of the answer, if there is
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from epochal.errors import HandlesIncomplete
from epochal.tasks.chunks import Chunk
from epochal.tasks.inputs import carried_name
from epochal.tasks.keys import named_rows
from epochal.tasks.output import OutputRows
from epochal.tasks.values import column_of

REQUEST: Final = "_request"
INSTANCE: Final = "_instance"
ANSWERED: Final = "_answered"
_OF_REQUEST, _OF_ANSWER = 0, 1


@dataclass(frozen=True)
class AnswerColumns:
    """The columns of requests and of answers, as the author knows them."""

    request: pa.Schema
    answer: pa.Schema

    @cached_property
    def carried(self) -> pa.Schema:
        """The columns of the rows on their way."""
        control = [pa.field(REQUEST, pa.int64()), pa.field(INSTANCE, pa.int32()), pa.field(ANSWERED, pa.bool_())]
        return pa.schema([*control, *_carried(_OF_REQUEST, self.request), *_carried(_OF_ANSWER, self.answer)])

    @classmethod
    def of(cls, carried: pa.Schema) -> AnswerColumns:
        """From :attr:`carried`."""
        names: dict[str, list[pa.Field]] = {f"_{number}_": [] for number in (_OF_REQUEST, _OF_ANSWER)}
        for column in list(carried)[3:]:
            prefix = column.name[:3]
            names[prefix].append(column.with_name(column.name[3:]))
        request, answer = map(pa.schema, names.values())
        return cls(request, answer)

    def requests(self, rows: pa.Table) -> list[Any]:
        """The request of each row as a named tuple."""
        return named_rows("Request", self._own(rows, _OF_REQUEST, self.request), self.request.names)

    def answers(self, rows: pa.Table) -> list[Any]:
        """The answer of each row as a named tuple."""
        return named_rows("Answer", self._own(rows, _OF_ANSWER, self.answer), self.answer.names)

    @staticmethod
    def _own(rows: pa.Table, number: int, columns: pa.Schema) -> pa.Table:
        return rows.select([carried_name(number, name) for name in columns.names]).rename_columns(columns.names)


def _carried(number: int, columns: pa.Schema) -> Iterator[pa.Field]:
    return (pa.field(carried_name(number, field.name), field.type) for field in columns)


class InstanceAnswers:
    """The answers of one instance, one by one, in batches of the columns ``carried``."""

    def __init__(self, operator: str, columns: AnswerColumns, instance: int) -> None:
        self._columns = columns
        self._instance = instance
        self._given = OutputRows(operator, columns.answer, what="answer")
        self._answered: list[bool] = []
        self._first = 0

    def __len__(self) -> int:
        return len(self._answered)

    def add(self, answer: Any) -> None:
        """The next request's; ``None``: this instance has nothing to say."""
        self._answered.append(answer is not None)
        if answer is not None:
            self._given.add([answer])

    def take(self, requests: pa.RecordBatch) -> pa.RecordBatch:
        """Those since the last call. ``requests``: what they answer. Raises ``SchemaError``."""
        answered, self._answered = pa.array(self._answered, pa.bool_()), []
        number = len(answered)
        places = pa.array(np.cumsum(answered.to_numpy(zero_copy_only=False)) - 1, mask=~np.asarray(answered))
        batches = [batch for batch in self._given.take() if isinstance(batch, pa.RecordBatch)]
        answers = pa.Table.from_batches(batches, self._columns.answer).combine_chunks().take(places)
        first, self._first = self._first, self._first + number
        known = [column_of(requests, name) for name in self._columns.request.names]
        if self._instance:
            known = [pa.nulls(number, each.type) for each in known]
        arrays = [
            pa.array(np.arange(first, first + number)),
            pa.array(np.full(number, self._instance, np.int32)),
            answered,
            *known,
            *(column_of(answers, name) for name in self._columns.answer.names),
        ]
        casts = [array.cast(field.type) for array, field in zip(arrays, self._columns.carried, strict=True)]
        return pa.RecordBatch.from_arrays(casts, schema=self._columns.carried)


def gathered(
    operator: str, columns: AnswerColumns, chunk: Chunk, parallelism: int
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Each request of a chunk with the answers of all instances, in their order. The barrier: all have to be there.

    Raises ``HandlesIncomplete`` where one is missing.
    """
    instances = column_of(chunk.rows, INSTANCE).to_numpy()
    complete = np.diff([*chunk.starts.tolist(), chunk.rows.num_rows]) == parallelism
    if not complete.all() or not (instances.reshape(-1, parallelism) == np.arange(parallelism)).all():
        raise HandlesIncomplete(
            f"Operator {operator!r}: a request has not been answered once by each of {parallelism} instances. This is "
            "a defect of Epochal, not of the pipeline: report it with the pipeline's graph."
        )
    requests = columns.requests(chunk.rows.take(pa.array(chunk.starts)))
    answered = column_of(chunk.rows, ANSWERED)
    answers = iter(columns.answers(chunk.rows.filter(answered)))
    counts = np.add.reduceat(np.asarray(answered.cast(pa.int8())).astype(np.int64), chunk.starts)
    for request, count in zip(requests, counts.tolist(), strict=True):
        yield request, [next(answers) for _ in range(count)]
