"""The join of two streams by key and distance in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from epochal.declarations.intervals import written_interval
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input, Subtasks, placed, united
from epochal.operators.joins.interval_work import KINDS, IntervalJoinWork
from epochal.operators.joins.plan import ROWS_THAT_STAY, joined_columns, rows_table
from epochal.operators.joins.work import MATCHED, ROW, TIME, WAITING, Side, gone_after
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.subtask_rows import InputColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IntervalJoinKind = Literal["inner", "left", "right", "full", "left_semi", "left_anti"]
LEFT, RIGHT = 0, 1
_NAMES = ("left", "right")


@dataclass(frozen=True)
class IntervalJoinOperator(Operator):
    """A left and a right row match where they are equal in ``on`` and right time - left time is in ``[low, high]``.

    ``low``, ``high``: microseconds, inclusive. ``times``: the event-time columns of both sides. State tables:
    ``name.left`` and ``name.right``, the rows that may still have a partner; for sides whose unmatched rows are
    emitted, ``name.left_waiting`` and ``name.right_waiting``, the rows without a partner by time.
    """

    kind: ClassVar[str] = "interval_join"
    name: str
    on: tuple[str, ...]
    low: int
    high: int
    how: IntervalJoinKind
    times: tuple[str, str]
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(
            Input(name, Distribution.BY_KEY, self.on, ROWS_THAT_STAY, event_time=time)
            for name, time in zip(_NAMES, self.times, strict=True)
        )

    @property
    def hold(self) -> int:
        """The maximum time that a row waits for a partner, or until no partner can follow."""
        return max(self.high, -self.low, 0)

    @property
    def at_one_time(self) -> bool:
        """True if rows match only at equal times, in columns of one name; the output then has one such column, as for
        ``on``."""
        left, right = self.times
        return (self.low, self.high) == (0, 0) and left.casefold() == right.casefold()

    @property
    def event_time_of_output(self) -> str | None:
        """The event time of the side that every output row has; a full join has no such side."""
        of_full = self.times[LEFT] if self.at_one_time else None
        return {"right": self.times[RIGHT], "full": of_full}.get(self.how, self.times[LEFT])

    def late_before(self, input: int, late: int) -> int | None:
        return late

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        kind = KINDS[self.how]
        shown_of_right = kind.pairs
        columns = joined_columns(self.name, self.on, frames, named_by=RIGHT if self.how == "right" else LEFT)
        columns.check_times(self.times)
        if shown_of_right:
            columns.check_clash(but=self.times if self.at_one_time else ())
        right = columns.beside_key(RIGHT) if shown_of_right else columns.only(RIGHT, self.times[RIGHT])
        left_side = self._side(LEFT, columns.key, columns.beside_key(LEFT), kind.left_alone)
        right_side = self._side(RIGHT, columns.key, right, kind.right_alone, shown=shown_of_right)
        sides = (left_side, right_side)
        tables = tuple(table for side in sides for table in (side.table, side.waiting) if table is not None)
        fields = {field.name: field for field in left_side.table.owner_schema}
        for side in sides:
            fields |= {name: side.table.value_schema.field(name) for name in side.shown}
        work = IntervalJoinWork(kind, left_side, right_side)
        return IntervalJoinPlan(self.name, self.inputs, columns.key, tables, work, pa.schema(list(fields.values())))

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {
            "on": list(self.on),
            "how": self.how,
            "within": [written_interval(self.low), written_interval(self.high)],
            "times": list(self.times),
            "hold": written_interval(self.hold),
        }

    def _side(
        self, number: int, key: tuple[Column, ...], kept: tuple[Column, ...], alone: bool, shown: bool = True
    ) -> Side:
        low, high = (self.low, self.high) if number == LEFT else (-self.high, -self.low)
        id = f"{self.name}.{_NAMES[number]}"
        time = next(column.name for column in kept if column.name.casefold() == self.times[number].casefold())
        # A side whose rows are deleted on a match needs no flag.
        flagged = alone and KINDS[self.how].pairs
        flag = (Column(name=MATCHED, type="boolean"),) if flagged else ()
        table = rows_table(self.name, id, key, kept, flag, self.queryable)
        expires = Expiry(clock="event", column=time, after=gone_after(high))
        within = f"{written_interval(self.low)} to {written_interval(self.high)}"
        table = table.model_copy(update={"expires": expires, "joined": {"how": self.how, "within": within}})
        waiting = self._waiting(f"{id}_waiting", key, high) if alone else None
        names = tuple(column.name for column in kept)
        carried = InputColumns.of(number, (*self.on, *names), self.on, tuple(column.name for column in key))
        key_names = tuple(column.name for column in key)
        return Side(number, carried, key_names, names, names if shown else (), time, low, high, table, waiting)

    def _waiting(self, id: str, key: tuple[Column, ...], high: int) -> StateTable:
        return StateTable(
            id=id,
            operator=self.name,
            kind=StateKind.MAP,
            key=key,
            time=Column(name=TIME, type="timestamp"),
            sub_key=(Column(name=ROW, type="binary"),),
            value=(Column(name=WAITING, type="boolean"),),
            expires=Expiry(clock="event", column=TIME, after=gone_after(high)),
            queryable=False,
        )


@dataclass(frozen=True)
class IntervalJoinPlan(OperatorPlan):
    """Shuffles only the columns that the task uses."""

    work: IntervalJoinWork

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        columns = [side.columns.names for side in (self.work.left, self.work.right)]
        return placed(united(frames, self.inputs, self.key, subtasks, columns), subtasks)
