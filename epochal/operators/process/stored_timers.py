"""Timers in state: a table for each time domain, ordered by due time, from which fired timers expire.

A timer is due at its time. A timer that is set at or before a fired timer of its key is due just after the clock of
that epoch, so that it is part of the snapshot, and fires in the next epoch even if the clock does not advance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import BEGINNING, END
from epochal.declarations.author_classes import TimeDomain
from epochal.errors import PipelineError
from epochal.operators.process.due_keys import DOMAIN, DUE, KEY, NAME, ROW, TIME, TIMER_SCHEMA, DueKeys
from epochal.operators.process.timers import DOMAINS, EVENT, PROCESSING, Timer, TimerWrites
from epochal.state.access import TableAccess
from epochal.state.expiry import Expiry, microseconds
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.keys import KeyChunk
from epochal.tasks.operator import Subtask
from epochal.tasks.subtask_rows import KEY_GROUP
from epochal.tasks.values import column_of

LATER = "_later"
"""The column that is true for timers set at or before a fired timer of their key."""
_OWN_COLUMNS = frozenset({DOMAIN, DUE, KEY, NAME, ROW, TIME, LATER})


def timer_tables(operator: str, key: tuple[Column, ...], has_event_time: bool) -> tuple[StateTable, ...]:
    """The tables of an operator with timers. Raises ``PipelineError`` for a key column with a reserved name."""
    for column in key:
        if column.name.casefold() in _OWN_COLUMNS:
            raise PipelineError(
                f"Operator {operator!r}: a key column of an operator with timers cannot be named {column.name!r}, a "
                "name that is reserved for timers. Rename it."
            )
    tables = (_table(operator, key, "event"), _table(operator, key, "processing"))
    return tables if has_event_time else tables[1:]


def table_id(operator: str, domain: TimeDomain) -> str:
    return f"{operator}._{domain}_timers"


def _table(operator: str, key: tuple[Column, ...], domain: TimeDomain) -> StateTable:
    return StateTable(
        id=table_id(operator, domain),
        operator=operator,
        kind=StateKind.MAP,
        key=key,
        sub_key=(Column(name=NAME, type="string"), Column(name=TIME, type="timestamp")),
        time=Column(name=DUE, type="timestamp"),
        value=(Column(name=LATER, type="boolean"),),
        expires=Expiry(clock=domain, column=DUE, after=0),
        queryable=False,
    )


class StoredTimers:
    """The timers of one subtask at the parent epoch, and the changes of the epoch."""

    def __init__(self, subtask: Subtask) -> None:
        clocks = (subtask.watermarks.fire, subtask.epoch_time)
        tables = {table.id: table for table in subtask.tables}
        self._domains = [
            _Domain(domain, tables[id], clocks[domain], subtask)
            for domain, name in enumerate(DOMAINS)
            if (id := table_id(subtask.operator, name)) in tables
        ]

    def due(self) -> list[Iterator[pa.Table]]:
        """The due timers of each domain, for :func:`epochal.operators.process.due_keys.due_keys`. Must be read to the
        end."""
        return [domain.due() for domain in self._domains]

    def stage(self, due: DueKeys, writes: TimerWrites) -> None:
        """Stage the changes by the calls of these keys."""
        for domain in self._domains:
            domain.stage(due, writes)

    def finish(self) -> None:
        """After all keys: add the next due time, or drop the waiting timers in the last epoch."""
        for domain in self._domains:
            domain.finish()


@dataclass(eq=False)
class _Domain:
    number: int
    table: StateTable
    clock: int
    subtask: Subtask

    def __post_init__(self) -> None:
        ownership = self.subtask.ownership
        view = self.subtask.transaction.view(self.table.id)
        self._access = TableAccess(self.table, view, ownership.max_parallelism)
        groups = self.table.scope.groups_read(ownership.subtask, ownership.parallelism, ownership.max_parallelism)
        self._groups: npt.NDArray[np.int32] = np.fromiter(groups, np.int32)
        self._taken_back = 0

    def due(self) -> Iterator[pa.Table]:
        # Timers that fire even if the clock has not advanced are due just after it.
        high = min(self.clock, END - 2) + 2
        if self.clock == BEGINNING:
            return
        for group in self._access.groups_with(self._groups, BEGINNING, high).tolist():
            for rows in self._access.due([group], BEGINNING, high):
                due = microseconds(column_of(rows, DUE))
                fires = pc.or_(pc.less_equal(due, self.clock), column_of(rows, LATER))
                waiting = due.filter(pc.invert(fires))
                if len(waiting) and not self.subtask.draining:
                    self._wait_for(pc.min(waiting).as_py())
                columns = [column_of(rows, name) for name in (*self.table.owner_schema.names, KEY_GROUP)]
                domain = pa.repeat(pa.scalar(self.number, pa.int8()), rows.num_rows)
                columns += [domain, microseconds(column_of(rows, TIME)), column_of(rows, NAME), due]
                names = [*self.table.owner_schema.names, KEY_GROUP, *TIMER_SCHEMA.names]
                yield pa.table(columns, names).filter(fires)

    def stage(self, due: DueKeys, writes: TimerWrites) -> None:
        puts = [(position, timer, at) for (position, timer), at in writes.puts.items() if timer[0] == self.number]
        gone = self._stored(due.keys, [deleted for deleted in writes.deletes if deleted[1][0] == self.number])
        self._count_dropped(due.keys, [dropped for dropped in writes.dropped if dropped[1][0] == self.number])
        if self.subtask.draining:  # finish() deletes them with all other timers
            self._taken_back += len(gone)
            gone = []
        gone += [
            (position, timer, at)
            for position, timer, at in self._unexpired(due)
            if (position, timer) not in writes.puts
        ]
        if not puts and not gone:
            return
        for _, timer, at in puts:
            self._wait_for(at if timer[1] == at else self.clock)
        rows = self._full_keys(due.keys, [*puts, *gone])
        operations = ["put"] * len(puts) + ["delete"] * len(gone)
        later = [timer[1] != at for _, timer, at in puts] + [None] * len(gone)
        rows = rows.append_column("_op", pa.array(operations)).append_column(LATER, pa.array(later, pa.bool_()))
        schema = self.table.delta_schema
        self.subtask.transaction.stage(self.table.id, rows.select(schema.names).cast(schema))

    def finish(self) -> None:
        if self.subtask.draining:
            self._drop()
            return
        low = BEGINNING if self.clock == BEGINNING else min(self.clock, END - 2) + 2
        earliest = self._access.earliest(self._groups, low)
        if earliest is not None:
            self._wait_for(earliest)

    def _count_dropped(self, keys: KeyChunk, dropped: Sequence[tuple[int, Timer]]) -> None:
        """Count dropped timers, without stored ones that wait, which are counted at the end."""
        waiting = self._stored(keys, [each for each in dropped if each[1][1] > self.clock])
        self.subtask.due.dropped_timers += len(dropped) - len(waiting)

    def _drop(self) -> None:
        """Delete all timers that have not fired, as the input has ended."""
        if self.clock == END:
            return
        schema, dropped = self.table.delta_schema, 0
        for rows in self._access.due(self._groups, self.clock + 1, END + 1):
            fired = pc.and_(pc.equal(microseconds(column_of(rows, DUE)), self.clock + 1), column_of(rows, LATER))
            left = rows.filter(pc.invert(fired)).drop_columns([LATER])
            deletes = left.append_column("_op", pa.repeat(pa.scalar("delete"), left.num_rows))
            deletes = deletes.append_column(LATER, pa.nulls(left.num_rows, pa.bool_()))
            self.subtask.transaction.stage(self.table.id, deletes.select(schema.names).cast(schema))
            dropped += left.num_rows
        self.subtask.due.dropped_timers += dropped - self._taken_back

    def _wait_for(self, time: int) -> None:
        if self.number == EVENT:
            self.subtask.due.add(event=time)
        else:
            assert self.number == PROCESSING
            self.subtask.due.add(processing=time)

    def _unexpired(self, due: DueKeys) -> list[tuple[int, Timer, int]]:
        """Timers that fired or were deleted, and do not expire because the clock has not advanced."""
        here = pc.and_(pc.equal(due.timers[DOMAIN], self.number), pc.greater(due.timers[DUE], self.clock))
        rows = np.flatnonzero(here.to_numpy())
        if not len(rows):
            return []
        positions = np.searchsorted(np.asarray(due.bounds), rows, "right").tolist()
        timers = due.timers.take(pa.array(rows))
        columns = (column_of(timers, name).to_pylist() for name in (TIME, NAME, DUE))
        return [
            (position, (self.number, time, name), at)
            for position, time, name, at in zip(positions, *columns, strict=True)
        ]

    def _stored(self, keys: KeyChunk, deleted: Sequence[tuple[int, Timer]]) -> list[tuple[int, Timer, int]]:
        """The stored ones of these timers, which are not due yet, with their due times."""
        if not deleted:
            return []
        asked = [(position, timer, timer[1]) for position, timer in sorted(deleted)]
        rows = self._full_keys(keys, asked)
        found, _ = self._access.get(rows.select(self.table.key_schema.names).cast(self.table.key_schema))
        return [row for row, there in zip(asked, found.tolist(), strict=True) if there]

    def _full_keys(self, keys: KeyChunk, rows: Sequence[tuple[int, Timer, int]]) -> pa.Table:
        """Full keys with ``_kg``: row i has the key at position ``rows[i][0]``, a timer and its due time."""
        positions = np.array([position for position, _, _ in rows], np.int64)
        table = keys.table.take(pa.array(positions)).append_column(KEY_GROUP, pa.array(keys.groups[positions]))
        timestamp = self.table.time_schema.types[0]
        table = table.append_column(DUE, pa.array([at for _, _, at in rows], pa.int64()).cast(timestamp))
        table = table.append_column(NAME, pa.array([timer[2] for _, timer, _ in rows], pa.string()))
        return table.append_column(TIME, pa.array([timer[1] for _, timer, _ in rows], pa.int64()).cast(timestamp))
