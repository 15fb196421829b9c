"""``answer``: the operator that keeps what the calls of all entries are answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.declarations.entry import REQUEST_ID, SEQUENCE
from epochal.state.table import TOUCHED, StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import SliceKeys, gathered

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
