"""``answer``: stores the answers to the calls of all entries."""

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
"""The input of the operator: calls, which have a number, and answers, which have one only if they also record a
call."""
_ORDER: Final = [
    (REQUEST_ID.name, "ascending"),
    (_ANSWERED, "descending"),
    *((name, "ascending") for name in _ANSWER.names),
]
"""The order of the rows of a call: answers first, the least answer before the others, then the call."""


@dataclass(frozen=True)
class AnswersWork:
    """Records calls and their answers. A call replaces an earlier call with the same id, which can only stem from the
    application that this one was forked from. The first of several answers is stored; of several answers in one epoch,
    the least. An answer without a call, or to an expired call, is dropped.

    Output: the ids of the answered calls.
    """

    tables: Mapping[str, StateTable]
    """The state tables, by entry."""
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        for entry, table in self.tables.items():
            mine = slice.filter(pc.equal(slice[_ENTRY], entry))
            if mine.num_rows:
                yield from _answered(subtask, table, mine).cast(subtask.output).to_batches()


def _answered(subtask: Subtask, table: StateTable, rows: pa.Table) -> pa.Table:
    """Stage the calls and answers of one entry. Returns the ids of the answered calls."""
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
