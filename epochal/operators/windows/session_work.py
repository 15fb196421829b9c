"""T2 of aggregates over session windows: merges the rows of an epoch with the open sessions of their keys.

There are two state tables: the open sessions of each key, and entries, the times at which to check a key, ordered by
time. Each key with open sessions has an entry at or before the time at which the first of them closes. If that session
has been extended by then, the entry is written again for the later time; so a row that extends a session writes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.contracts.conditions import BEGINNING, END
from epochal.declarations.windows import WINDOW_END, WINDOW_START
from epochal.operators.windows.open_windows import KeyBlocks, of_groups
from epochal.operators.windows.sessions import Integers, Sessions, closed_until, closes_at, merged_sessions
from epochal.operators.windows.work import Merging
from epochal.state.access import TableAccess
from epochal.state.table import StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.reporting import AuthorCall
from epochal.tasks.row_runs import Runs, reduced
from epochal.tasks.slices import delta_rows, gathered, key_numbers
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of
from epochal.tasks.windows import times_of, timestamps

BATCH_ROWS: Final = 1 << 17
SESSION_END: Final = "_session_end"
"""The end of the session of a partial of several rows; without this column, each partial has one time."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SessionAggregateWork:
    """Output: key columns, ``window_start``, ``window_end``, merged partials and the columns that the plan computes.

    The input has partials by key and session, or by key and event time; ``window_start`` is their start. Raises
    ``EpochAborted`` for a value that exceeds its type, ``AuthorError`` for errors of an author's merge.
    """

    plan: Merging
    sessions: StateTable
    entries: StateTable
    gap: int
    allowed_lateness: int
    batch_rows: int = BATCH_ROWS
    """The approximate number of rows and sessions that are merged at a time."""
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _Epoch(self, subtask).run(gathered(rows))


@dataclass(frozen=True)
class _Block:
    """The new rows of a block of key groups, and the stored sessions of all keys to check.

    ``keys``: the distinct keys; sessions refer to their positions. ``called``: a mask of the keys with a due entry.
    """

    keys: pa.Table
    groups: npt.NDArray[np.int32]
    called: Mask
    new: Sessions
    stored: Sessions
    new_partials: pa.Table
    stored_partials: pa.Table


class _Epoch:
    """The sessions of one subtask in one epoch."""

    def __init__(self, work: SessionAggregateWork, subtask: Subtask) -> None:
        self._work = work
        self._subtask = subtask
        fire = subtask.watermarks.fire
        self._due_until = fire if fire == END else fire + 1
        """Entries before this time are due."""
        self._closed_until = closed_until(fire, work.allowed_lateness)
        """Sessions with an end up to this time are closed after the epoch."""
        owned, table = subtask.ownership, work.sessions
        self._groups = table.scope.groups_read(owned.subtask, owned.parallelism, owned.max_parallelism)
        view = subtask.transaction.view
        self._sessions = TableAccess(table, view(table.id), owned.max_parallelism)
        self._entries = TableAccess(work.entries, view(work.entries.id), owned.max_parallelism)
        self._key_names = table.owner_schema.names
        self._partials = work.plan.table.value_schema.names
        self._author = AuthorCall(lambda: f"Operator {subtask.operator!r}, merging")

    def run(self, slice: pa.Table) -> Iterator[pa.RecordBatch]:
        first = self._entries.earliest(self._groups)
        due = first is not None and first < self._due_until
        if slice.num_rows or due:
            groups = column_of(slice, KEY_GROUP).to_numpy(zero_copy_only=False)
            blocks = KeyBlocks(self._groups, self._work.batch_rows)
            for some in blocks:
                block = self._block(slice.filter(pa.array(of_groups(groups, some))), some, due)
                if block is None:
                    continue
                blocks.held = len(block.new.keys) + len(block.stored.keys)
                yield from self._merged(block)
        later = self._entries.earliest(self._groups, self._due_until) if self._due_until < END else None
        if later is not None:
            self._subtask.due.add(event=later)

    def _block(self, rows: pa.Table, some: npt.NDArray[np.int32], due: bool) -> _Block | None:
        schema = self._work.sessions.owner_schema
        group = pa.field(KEY_GROUP, pa.int32())
        called = list(self._entries.due(some, BEGINNING, self._due_until)) if due else []
        parts = [part.select([KEY_GROUP, *schema.names]).cast(pa.schema([group, *schema])) for part in (rows, *called)]
        every = pa.concat_tables(parts).combine_chunks()
        if not every.num_rows:
            return None
        numbers = key_numbers(every.select(schema.names))
        _, firsts = np.unique(numbers, return_index=True)
        found = every.take(pa.array(firsts))
        keys, groups = found.select(schema.names), column_of(found, KEY_GROUP).to_numpy(zero_copy_only=False)
        is_called = np.zeros(len(firsts), np.bool_)
        is_called[numbers[rows.num_rows :]] = True
        starts = times_of(column_of(rows, WINDOW_START))
        together = SESSION_END in rows.column_names
        ends = times_of(column_of(rows, SESSION_END)) if together else starts + self._work.gap
        entries = self._sessions.entries(keys, groups)
        starts_stored, ends_stored = (times_of(column_of(entries.rows, name)) for name in (WINDOW_START, WINDOW_END))
        return _Block(
            keys,
            groups,
            is_called,
            Sessions(numbers[: rows.num_rows], starts, ends),
            Sessions(entries.owner, starts_stored, ends_stored),
            rows.select(self._partials).cast(self._work.plan.table.value_schema),
            entries.rows.select(self._partials),
        )

    def _merged(self, block: _Block) -> Iterator[pa.RecordBatch]:
        stored = block.stored
        merged = merged_sessions(block.new, stored)
        changed, absorbed = merged.changed, merged.of_stored >= 0
        partials = self._reduced(block, np.concatenate([merged.of_new, merged.of_stored]))
        closed = changed.ends <= self._closed_until
        closed_stored = ~absorbed & (stored.ends <= self._closed_until)
        self._stage(block, _where(changed, ~closed), partials.filter(pa.array(~closed)))
        # A stored session with a later start than the merged one is another row, which is deleted unless it has
        # expired.
        begins = np.zeros(len(absorbed), np.int64)
        begins[absorbed] = changed.starts[merged.of_stored[absorbed]]
        replaced = absorbed & (stored.starts != begins) & (stored.ends > self._closed_until)
        self._stage(block, _where(stored, replaced), None)
        still_open = [_where(changed, ~closed), _where(stored, ~absorbed & ~closed_stored)]
        self._call_again(block, still_open)
        for sessions, values in (
            (_where(changed, closed), partials.filter(pa.array(closed))),
            (_where(stored, closed_stored), block.stored_partials.filter(pa.array(closed_stored))),
        ):
            yield from self._output(block, sessions, values)

    def _reduced(self, block: _Block, session: Integers) -> pa.Table:
        """The partials of each changed session. ``session``: by new and stored session, the changed one, or -1."""
        parts = np.flatnonzero(session >= 0)
        starts = np.concatenate([block.new.starts, block.stored.starts])
        order = parts[np.lexsort((starts[parts], session[parts]))]
        in_order = session[order]
        firsts = np.flatnonzero(np.diff(in_order, prepend=-1))
        rows = pa.concat_tables([block.new_partials, block.stored_partials]).combine_chunks().take(pa.array(order))
        return reduced(
            rows.combine_chunks(), Runs(firsts, np.append(firsts[1:], len(order))[: len(firsts)]), self._both
        )

    def _both(self, one: pa.Table, other: pa.Table) -> pa.Table:
        with self._author:
            return self._work.plan.merge(np.ones(one.num_rows, np.bool_), one, other).combine_chunks()

    def _stage(self, block: _Block, sessions: Sessions, partials: pa.Table | None) -> None:
        """Stage puts of sessions, or, without ``partials``, their deletion."""
        table = self._work.sessions
        if not len(sessions.keys):
            return
        groups, operation = block.groups[sessions.keys], "delete" if partials is None else "put"
        columns = [*block.keys.take(pa.array(sessions.keys)).columns, timestamps(sessions.starts)]
        if partials is not None:
            columns += [timestamps(sessions.ends), *partials.columns]
        self._subtask.transaction.stage(table.id, delta_rows(table, groups, operation, columns))

    def _call_again(self, block: _Block, still_open: list[Sessions]) -> None:
        """Stage an entry for each key with open sessions whose entry is missing or too late."""
        closes, closed_before = (
            self._first_end(len(block.groups), sessions) for sessions in (still_open, [block.stored])
        )
        needed = np.flatnonzero((closes < END) & (block.called | (closes < closed_before)))
        if not len(needed):
            return
        table, at = self._work.entries, closes_at(closes[needed], self._work.allowed_lateness)
        keys, yes = block.keys.take(pa.array(needed)), pa.repeat(True, len(needed))
        columns = [timestamps(at), *keys.columns, yes]
        self._subtask.transaction.stage(table.id, delta_rows(table, block.groups[needed], "put", columns))
        self._subtask.due.add(event=int(at.min()))

    def _first_end(self, keys: int, sessions: list[Sessions]) -> Integers:
        """For each key, the end of the session that closes first; ``END`` without sessions."""
        firsts = np.full(keys, END)
        for some in sessions:
            np.minimum.at(firsts, some.keys, some.ends)
        return firsts

    def _output(self, block: _Block, sessions: Sessions, partials: pa.Table) -> Iterator[pa.RecordBatch]:
        if not len(sessions.keys):
            return
        partials = partials.combine_chunks()
        with self._author:
            computed = self._work.plan.compute(partials)
        columns = [*block.keys.take(pa.array(sessions.keys)).columns]
        columns += [timestamps(sessions.starts), timestamps(sessions.ends), *partials.columns, *computed]
        yield from pa.Table.from_arrays(columns, schema=self._subtask.output).to_batches()


def _where(sessions: Sessions, chosen: Mask) -> Sessions:
    return Sessions(sessions.keys[chosen], sessions.starts[chosen], sessions.ends[chosen])
