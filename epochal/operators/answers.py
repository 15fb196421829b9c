"""``answer``: the operator that keeps what the calls of an entry are answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.entries import REQUEST_ID, SEQUENCE, Entry, answers_table
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
_ROWS: Final = pa.schema([REQUEST_ID.to_arrow(), SEQUENCE.to_arrow(), (_ANSWERED, pa.bool_()), *_ANSWER])
"""What comes to the operator: calls, which have a number, and answers, which have none."""
_ORDER: Final = [
    (REQUEST_ID.name, "ascending"),
    (_ANSWERED, "descending"),
    *((name, "ascending") for name in _ANSWER.names),
]
"""Of each call the answers first, the least one before the others, and the call itself at the end."""


@dataclass(frozen=True)
class Taken:
    """Of calls, that they were taken. Where nothing else answers them, they are ``answered`` by that, with null."""

    answered: bool

    def __call__(self, frame: DataFrame) -> DataFrame:
        null = "CAST(NULL AS STRING)"
        value = "'null'" if self.answered else null
        return frame.selectExpr(
            REQUEST_ID.name, SEQUENCE.name, f"{str(self.answered).lower()} AS {_ANSWERED}", f"{value} AS value",
            f"{null} AS error",
        )  # fmt: skip

    def table(self, rows: pa.Table) -> pa.Table:
        """Of rows in Arrow."""
        count = rows.num_rows
        value = pa.repeat(pa.scalar("null"), count) if self.answered else pa.nulls(count, pa.string())
        return pa.Table.from_arrays(
            [
                rows[REQUEST_ID.name],
                rows[SEQUENCE.name],
                pa.repeat(pa.scalar(self.answered), count),
                value,
                pa.nulls(count, pa.string()),
            ],
            schema=_ROWS,
        )


@dataclass(frozen=True)
class Answering:
    """From the stream that answers an entry its answers. Raises ``PipelineError`` that names the column and the fix."""

    entry: str

    def __call__(self, frame: DataFrame) -> DataFrame:
        self._check(list(frame.columns), {field.name.casefold(): type_name(field.dataType) for field in frame.schema})
        return frame.selectExpr(
            REQUEST_ID.name, f"CAST(NULL AS BIGINT) AS {SEQUENCE.name}", f"true AS {_ANSWERED}", "value", "error"
        )

    def table(self, rows: pa.Table) -> pa.Table:
        """Of rows in Arrow."""
        self._check(rows.column_names, {})
        count = rows.num_rows
        numbers, answered = pa.nulls(count, pa.int64()), pa.repeat(pa.scalar(True), count)
        return pa.Table.from_arrays(
            [rows[REQUEST_ID.name], numbers, answered, rows["value"], rows["error"]], schema=_ROWS
        )

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


@dataclass(frozen=True)
class AnswersOperator(Operator):
    """State table: ``{entry}_answers``. A call that was taken is in it, answered or not, for ``ttl`` after the last of
    both."""

    kind: ClassVar[str] = "answers"
    entry: Entry
    ttl: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.entry.table

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("calls and answers", Distribution.BY_KEY, (REQUEST_ID.name,)),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        table = answers_table(self.entry, self.ttl)
        output = pa.schema([REQUEST_ID.to_arrow()])
        return OperatorPlan(self.name, self.inputs, (REQUEST_ID,), (table,), AnswersWork(table), output)

    def details(self) -> dict[str, Any]:
        return {"entry": self.entry.name, "ttl": self.ttl}


@dataclass(frozen=True)
class AnswersWork:
    """A call is noted when it is taken, and takes the place of what an earlier one with its id has left, which can only
    be one of the application that this one was forked from. Of several answers the first one stays, and of those of
    one epoch the least. An answer to what nobody has called, or so long ago that it is forgotten, is left out.

    Output: the ids that were answered.
    """

    table: StateTable
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        if not slice.num_rows:
            return
        slice = slice.take(pc.sort_indices(slice, sort_keys=_ORDER)).combine_chunks()
        ids = slice[REQUEST_ID.name].combine_chunks()
        changes = np.asarray(pc.not_equal(ids[1:], ids[:-1]))
        first, last = np.flatnonzero(np.r_[True, changes]), np.flatnonzero(np.r_[changes, True])
        best = slice.take(pa.array(first))
        numbers = slice[SEQUENCE.name].combine_chunks().take(pa.array(last))
        answered = np.asarray(best[_ANSWERED])
        called = np.asarray(numbers.is_valid())
        keys = SliceKeys.living(subtask, self.table, best)
        found, before = keys.stored()
        waiting = found & ~np.asarray(pc.fill_null(before[_ANSWERED].combine_chunks(), True))
        kept = called | (answered & waiting)
        values = [
            pc.coalesce(numbers, before[SEQUENCE.name].combine_chunks()),
            pa.array(answered),
            best["value"].combine_chunks(),
            best["error"].combine_chunks(),
            pa.repeat(pa.scalar(subtask.epoch_time), len(found)).cast(self.table.value_schema.field(TOUCHED.name).type),
        ]
        chosen = pa.array(kept)
        if kept.any():
            changed = keys.filter(chosen)
            subtask.transaction.stage(self.table.id, changed.changes("put", [value.filter(chosen) for value in values]))
        yield from best.select([REQUEST_ID.name]).filter(pa.array(kept & answered)).cast(subtask.output).to_batches()
