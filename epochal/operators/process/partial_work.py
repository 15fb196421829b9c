"""``process_partial``: the author's function over partial state, an instance of it in each subtask (SDG 3.2).

Rows come to any instance (local access), requests to all (global access), after the epoch's rows. What the instances
answer is merged by :mod:`epochal.operators.process.partial_plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from types import GeneratorType
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.declarations.sides import To
from epochal.declarations.state import bind, declared_states
from epochal.declarations.unkeyed import PartialProcess
from epochal.errors import HandlesIncomplete, SchemaError
from epochal.operators.process.author_object import author_object, read_only
from epochal.operators.process.contexts import context_of
from epochal.operators.process.keyed_state import Cursor, KeyedValue
from epochal.operators.process.list_and_map_state import KeyedList, KeyedMap
from epochal.operators.process.output_rows import OutputRows, given_in_parts, shortened
from epochal.state.table import StateKind, StateTable
from epochal.tasks.keys import CHUNK_ROWS, Chunk, KeyChunk, named_rows, whole_keys
from epochal.tasks.operator import Ownership, Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.subtask_rows import InputColumns, by_input, carried_name
from epochal.tasks.task_output import OutputBatch
from epochal.tasks.values import column_of

REQUESTS, ROWS = 0, 1
"""The numbers of the inputs, if there are requests. A subtask receives the rows before the requests."""
REQUEST: Final = "_request"
INSTANCE: Final = "_instance"
ANSWERED: Final = "_answered"
_OF_REQUEST, _OF_ANSWER = 0, 1
InstanceState = KeyedValue | KeyedList | KeyedMap
_STATES: Mapping[StateKind, type[InstanceState]] = {
    StateKind.VALUE: KeyedValue,
    StateKind.LIST: KeyedList,
    StateKind.MAP: KeyedMap,
}


@dataclass(frozen=True)
class ProcessPartialWork:
    """The work of ``process_partial``. ``names``: the columns of a row, in the author's order; ``rows`` and
    ``requests``: the columns of both inputs, if there are requests; ``answers``: the columns of answers, if they are
    merged.

    Raises the errors of ``ProcessAnyWork``, and ``AuthorError``, with the request, for errors of ``process_global``.
    """

    process: type[PartialProcess]
    names: tuple[str, ...]
    rows: InputColumns | None = None
    requests: InputColumns | None = None
    answers: AnswerColumns | None = None
    chunk_rows: int = CHUNK_ROWS
    """The number of rows, of the inputs and of the output, that are Python objects at a time."""
    needs_order: ClassVar[bool] = True

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        calls = _Calls(self, subtask)
        first_requests: list[pa.RecordBatch] = []
        runs = ((ROWS, batch) for batch in rows) if self.rows is None else by_input(rows)

        def own_rows() -> Iterator[pa.RecordBatch]:
            for number, run in runs:
                if number == REQUESTS:
                    first_requests.append(run)
                    return
                yield run if self.rows is None else self.rows.own(run)

        with read_only(calls.author, f"Operator {subtask.operator!r}"):
            yield from calls.local(own_rows())
            if self.requests is not None:
                for run in chain(first_requests, (run for _, run in runs)):
                    for part in _parts(self.requests.own(run), self.chunk_rows):
                        yield from calls.all(part)
        calls.stage()


class _Calls:
    """The author's object in one subtask, with its instance of each state."""

    def __init__(self, work: ProcessPartialWork, subtask: Subtask) -> None:
        self._work = work
        self._subtask = subtask
        self._context = context_of(subtask)
        tables = {table.id: table for table in subtask.tables}
        self._states: dict[str, InstanceState] = {}
        for name in declared_states(work.process):
            table = tables[f"{subtask.operator}.{name}"]
            self._states[name] = instance_state(table, subtask.transaction.view(table.id), subtask.ownership)
        answers, name = work.answers, subtask.operator
        self._answers = None if answers is None else InstanceAnswers(name, answers, subtask.subtask)
        self._output = OutputRows(name, subtask.output, subtask.sides)
        self.author = author_object(subtask.operator, work.process)
        bind(self.author, self._states)

    def local(self, batches: Iterator[pa.RecordBatch]) -> Iterator[OutputBatch]:
        """Local access: one call, with all rows of the instance."""
        rows = self._named(batches)
        with AuthorCall(lambda: f"Operator {self._subtask.operator!r}, subtask {self._subtask.subtask}"):
            result = self.author.process(rows, self._context)
            for part in given_in_parts(result, self._work.chunk_rows):
                self._output.add(part if self._answers is None else self._to_sides(part))
                yield from self._output.take()
        for _ in rows:
            """Read the rows that the author's function has not read, as every row must be read."""

    def all(self, requests: pa.RecordBatch) -> Iterator[OutputBatch]:
        """Global access: a call for each request."""
        work = self._work
        assert work.requests is not None  # there are some
        for request in named_rows("Request", requests, work.requests.names):
            with AuthorCall(partial("Operator {!r}, request {}".format, self._subtask.operator, request)):
                result = self.author.process_global(request, self._context)
                if self._answers is None:
                    self._output.add(result)
                elif isinstance(result, (GeneratorType, list)):
                    raise SchemaError(
                        f"Operator {self._subtask.operator!r}: process_global returned {shortened(result)}. With merge "
                        "it must return one answer, a tuple or a dict of its columns, or None; it cannot yield."
                    )
                else:
                    self._answers.add(result)
        if self._answers is None:
            yield from self._output.take()
        else:
            yield self._answers.take(requests)

    def stage(self) -> None:
        for state in self._states.values():
            changes = state.changes()
            if changes is not None:
                self._subtask.transaction.stage(state.table.id, changes)

    def _named(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        for batch in batches:
            for part in _parts(batch, self._work.chunk_rows):
                yield from named_rows("Row", part, self._work.names)

    def _to_sides(self, rows: Iterable[Any] | None) -> list[Any] | None:
        if rows is None:
            return None
        to_sides = list(rows)
        for row in to_sides:
            if type(row) is not To:
                raise SchemaError(
                    f"Operator {self._subtask.operator!r}: process yielded {shortened(row)}, but only merge writes to "
                    "the output. Declare a side, and yield To(side, row)."
                )
        return to_sides


def _parts(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


@dataclass(frozen=True)
class MergeAnswersWork:
    """The author's ``merge``, once per request. Raises ``AuthorError``, with the request, for errors of ``merge``, and
    ``SchemaError`` for results that do not fit."""

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
                for request, answers in answers_by_request(subtask.operator, self.columns, chunk, parallelism):
                    with AuthorCall(partial("{}, request {}".format, where, request)):
                        output.add(author.merge(request, answers, context))
                yield from output.take()


@dataclass(frozen=True)
class AnswerColumns:
    """The columns of requests and of answers, in the author's view.

    An answer is sent to the merge as a row for each request and instance: the position of the request in the epoch,
    which is the same in all instances; the number of the instance; the columns of the request, only in the row of
    instance 0; and the columns of the answer, if there is one.
    """

    request: pa.Schema
    answer: pa.Schema

    @cached_property
    def carried(self) -> pa.Schema:
        """The columns of the rows that are sent to the merge."""
        control = [pa.field(REQUEST, pa.int64()), pa.field(INSTANCE, pa.int32()), pa.field(ANSWERED, pa.bool_())]
        return pa.schema([*control, *_carried(_OF_REQUEST, self.request), *_carried(_OF_ANSWER, self.answer)])

    @classmethod
    def of(cls, carried: pa.Schema) -> AnswerColumns:
        """The inverse of :attr:`carried`."""
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
    """Collects the answers of one instance, and returns them in batches with the columns ``carried``."""

    def __init__(self, operator: str, columns: AnswerColumns, instance: int) -> None:
        self._columns = columns
        self._instance = instance
        self._given = OutputRows(operator, columns.answer, what="answer")
        self._answered: list[bool] = []
        self._first = 0

    def __len__(self) -> int:
        return len(self._answered)

    def add(self, answer: Any) -> None:
        """Add the answer to the next request; ``None``: this instance has no answer."""
        self._answered.append(answer is not None)
        if answer is not None:
            self._given.add([answer])

    def take(self, requests: pa.RecordBatch) -> pa.RecordBatch:
        """The answers since the last call, to these ``requests``. Raises ``SchemaError``."""
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


def answers_by_request(
    operator: str, columns: AnswerColumns, chunk: Chunk, parallelism: int
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Each request of a chunk with the answers of all instances, in their order.

    Raises ``HandlesIncomplete`` if the row of an instance is missing.
    """
    instances = column_of(chunk.rows, INSTANCE).to_numpy()
    complete = np.diff([*chunk.starts.tolist(), chunk.rows.num_rows]) == parallelism
    if not complete.all() or not (instances.reshape(-1, parallelism) == np.arange(parallelism)).all():
        raise HandlesIncomplete(
            f"Operator {operator!r}: a request does not have one answer from each of {parallelism} instances. This is "
            "a defect of Epochal, not of the pipeline: report it with the pipeline's graph."
        )
    requests = columns.requests(chunk.rows.take(pa.array(chunk.starts)))
    answered = column_of(chunk.rows, ANSWERED)
    answers = iter(columns.answers(chunk.rows.filter(answered)))
    counts = np.add.reduceat(np.asarray(answered.cast(pa.int8())).astype(np.int64), chunk.starts)
    for request, count in zip(requests, counts.tolist(), strict=True):
        yield request, [next(answers) for _ in range(count)]


def instance_state(table: StateTable, view: StateView, ownership: Ownership) -> InstanceState:
    """The access to a subtask's instance of partial state, as keyed state with a single key, the subtask's number."""
    state = _STATES[table.kind](table, view, ownership.max_parallelism, Cursor())
    number = np.array([ownership.subtask], np.int32)
    only = pa.table([pa.array(number)], schema=table.owner_schema)
    state.begin(KeyChunk(table.key, only, number))
    return state
