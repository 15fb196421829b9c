"""``answer``: the operator that keeps what the calls of all entries are answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.entry import ANSWERS, REQUEST_ID, SEQUENCE, Entry, answers_table
from epochal.declarations.names import closest, listed
from epochal.errors import PipelineError
from epochal.operators.contract import Distribution, Input, Operator, OperatorPlan
from epochal.state.table import TOUCHED, StateTable
from epochal.state.type_names import type_name
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import SliceKeys, gathered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ANSWER: Final = pa.schema([("value", pa.string()), ("error", pa.string())])
_ANSWERED: Final = "answered"
_ENTRY: Final = "entry"
ANSWER_ROWS: Final = pa.schema(
    [(_ENTRY, pa.string()), REQUEST_ID.to_arrow(), SEQUENCE.to_arrow(), (_ANSWERED, pa.bool_()), *_ANSWER]
)
"""What comes to the operator: calls, which have a number, and answers, which have none unless they stand for the call
as well."""
_ORDER: Final = [
    (REQUEST_ID.name, "ascending"),
    (_ANSWERED, "descending"),
    *((name, "ascending") for name in _ANSWER.names),
]
"""Of each call the answers first, the least one before the others, and the call itself at the end."""


@dataclass(frozen=True)
class Taken:
    """Of all calls those of ``entries``: that they were taken. Where nothing else answers them, they are ``answered``
    by that, with null."""

    entries: tuple[str, ...]
    answered: frozenset[str]

    def __call__(self, frame: DataFrame) -> DataFrame:
        answered = _among(self.answered)
        return frame.where(_among(self.entries)).selectExpr(
            _ENTRY, REQUEST_ID.name, SEQUENCE.name, f"{answered} AS {_ANSWERED}",
            f"IF({answered}, 'null', NULL) AS value", "CAST(NULL AS STRING) AS error",
        )  # fmt: skip

    def table(self, rows: pa.Table) -> pa.Table:
        """Of rows in Arrow."""
        calls = rows.filter(pc.is_in(rows[_ENTRY], pa.array(self.entries, pa.string())))
        answered = pc.is_in(calls[_ENTRY], pa.array(sorted(self.answered), pa.string()))
        value = pc.if_else(answered, pa.scalar("null"), pa.scalar(None, pa.string()))
        error = pa.nulls(calls.num_rows, pa.string())
        columns = [calls[_ENTRY], calls[REQUEST_ID.name], calls[SEQUENCE.name], answered, value, error]
        return pa.Table.from_arrays(columns, schema=ANSWER_ROWS)


def _among(entries: Collection[str]) -> str:
    """The condition that a call is of one of them, whose names have no quotes."""
    return f"{_ENTRY} IN ({', '.join(map(repr, sorted(entries)))})" if entries else "false"


@dataclass(frozen=True)
class Answering:
    """From the stream that answers an entry its answers, kept for ``ttl``. Raises ``PipelineError`` that names the
    column and the fix."""

    entry: str
    ttl: str

    @property
    def kept(self) -> Mapping[str, str]:
        """By entry how long its answers are kept."""
        return {self.entry: self.ttl}

    def __call__(self, frame: DataFrame) -> DataFrame:
        self._check(list(frame.columns), {field.name.casefold(): type_name(field.dataType) for field in frame.schema})
        return answer_frame(frame, f"'{self.entry}'")

    def table(self, rows: pa.Table) -> pa.Table:
        """Of rows in Arrow."""
        self._check(rows.column_names, {})
        return answer_table(pa.repeat(pa.scalar(self.entry), rows.num_rows), rows)

    def _check(self, there: list[str], types: dict[str, str]) -> None:
        where, needed = f"answer({self.entry!r})", (REQUEST_ID.name, *_ANSWER.names)
        known = {name.casefold() for name in there}
        for name in needed:
            if name not in known:
                raise PipelineError(
                    f"{where}: the stream has no column {name!r}; it has {listed(there)}. Select 'request_id', 'value' "
                    f"(a string of JSON) and 'error' (a string, null where there is none).{closest(name, there)}"
                )
            if types.get(name, "string") != "string":
                raise PipelineError(
                    f"{where}: column {name!r} is {types[name]}, and has to be a string"
                    f"{', of JSON: to_json(value) or CAST(value AS STRING)' if name == 'value' else ''}."
                )
        unknown = [name for name in there if name.casefold() not in needed]
        if unknown:
            raise PipelineError(
                f"{where}: the stream has a column {unknown[0]!r} that an answer has not. Leave it out: "
                f"select({', '.join(map(repr, needed))})."
            )


def answer_frame(
    frame: DataFrame,
    entry: str,
    request_id: str = REQUEST_ID.name,
    sequence: str = "CAST(NULL AS BIGINT)",
    value: str = "value",
    error: str = "error",
) -> DataFrame:
    """The rows as those of answers, each column by an expression in SQL. ``entry``: whose they are; ``sequence``: the
    number of the call, where a row stands for that as well."""
    return frame.selectExpr(
        f"{entry} AS {_ENTRY}", f"{request_id} AS {REQUEST_ID.name}", f"{sequence} AS {SEQUENCE.name}",
        f"true AS {_ANSWERED}", f"{value} AS value", f"{error} AS error",
    )  # fmt: skip


def answer_table(entry: pa.Array, rows: pa.Table) -> pa.Table:
    """As :func:`answer_frame`, of rows in Arrow, with ``sequence`` where they have it."""
    known = SEQUENCE.name in rows.column_names
    numbers = rows[SEQUENCE.name] if known else pa.nulls(len(rows), pa.int64())
    answered = pa.repeat(pa.scalar(True), len(rows))
    columns = [entry, rows[REQUEST_ID.name], numbers, answered, rows["value"], rows["error"]]
    return pa.Table.from_arrays(columns, schema=ANSWER_ROWS)


@dataclass(frozen=True)
class AnswersOperator(Operator):
    """State tables: ``{entry}_answers`` of each entry. A call that was taken is in it, answered or not, for so long
    after the last of both as ``kept`` says beside the entry.

    One operator for all entries: each further one would be a shuffle and tasks of its own in every epoch.
    """

    kind: ClassVar[str] = "answers"
    kept: tuple[tuple[Entry, str], ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return ANSWERS

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("calls and answers", Distribution.BY_KEY, (REQUEST_ID.name,)),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        tables = {entry.name: answers_table(entry, ttl) for entry, ttl in self.kept}
        output = pa.schema([REQUEST_ID.to_arrow()])
        work = AnswersWork(tables)
        return OperatorPlan(self.name, self.inputs, (REQUEST_ID,), tuple(tables.values()), work, output)

    def details(self) -> dict[str, Any]:
        return {"kept": {entry.name: ttl for entry, ttl in self.kept}}


@dataclass(frozen=True)
class AnswersWork:
    """A call is noted when it is taken, and takes the place of what an earlier one with its id has left, which can only
    be one of the application that this one was forked from. Of several answers the first one stays, and of those of
    one epoch the least. An answer to what nobody has called, or so long ago that it is forgotten, is left out.

    Output: the ids that were answered.
    """

    tables: Mapping[str, StateTable]
    """By entry."""
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        for entry, table in self.tables.items():
            mine = slice.filter(pc.equal(slice[_ENTRY], entry))
            if mine.num_rows:
                yield from _answered(subtask, table, mine).cast(subtask.output).to_batches()


def _answered(subtask: Subtask, table: StateTable, rows: pa.Table) -> pa.Table:
    """The ids of the calls of one entry that ``rows`` answer, which the epoch keeps."""
    rows = rows.take(pc.sort_indices(rows, sort_keys=_ORDER)).combine_chunks()
    ids = rows[REQUEST_ID.name].combine_chunks()
    changes = np.asarray(pc.not_equal(ids[1:], ids[:-1]))
    first, last = np.flatnonzero(np.r_[True, changes]), np.flatnonzero(np.r_[changes, True])
    best = rows.take(pa.array(first))
    numbers = rows[SEQUENCE.name].combine_chunks().take(pa.array(last))
    answered = np.asarray(best[_ANSWERED])
    called = np.asarray(numbers.is_valid())
    keys = SliceKeys.living(subtask, table, best)
    found, before = keys.stored()
    waiting = found & ~np.asarray(pc.fill_null(before[_ANSWERED].combine_chunks(), True))
    kept = called | (answered & waiting)
    values = [
        pc.coalesce(numbers, before[SEQUENCE.name].combine_chunks()),
        pa.array(answered),
        best["value"].combine_chunks(),
        best["error"].combine_chunks(),
        pa.repeat(pa.scalar(subtask.epoch_time), len(found)).cast(table.value_schema.field(TOUCHED.name).type),
    ]
    chosen = pa.array(kept)
    if kept.any():
        changed = keys.filter(chosen)
        subtask.transaction.stage(table.id, changed.changes("put", [value.filter(chosen) for value in values]))
    return best.select([REQUEST_ID.name]).filter(pa.array(kept & answered))
