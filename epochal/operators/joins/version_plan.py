"""Joins of a stream with versions of another stream's rows: as of the event time of each row (temporal join), or the
newest versions at the time of processing (latest join)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from epochal.contracts.stream_kind import Accepted, Kind, StreamKind
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input
from epochal.operators.joins.plan import ROWS_THAT_STAY, JoinedColumns, joined_columns, rows_table
from epochal.operators.joins.version_work import DELETED, LatestJoinWork, TemporalJoinWork
from epochal.operators.joins.work import ROW, TIME, WAITING, Side, gone_after
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.types import FLOATING, is_key_type
from epochal.tasks.subtask_rows import InputColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TemporalJoinKind = Literal["inner", "left"]
ROWS, VERSIONS = 0, 1


def _fix(stream: StreamKind) -> str:
    return "It does not emit the deletion of versions, so that old versions would stay valid. Filter after the join."


VERSIONS_OF_KEYS = Accepted(frozenset({Kind.APPEND, Kind.UPSERT}), _fix)


@dataclass(frozen=True)
class TemporalJoinOperator(Operator):
    """Each row with the newest version of its key at or before ``as_of``, the row's event time.

    ``order_by``: the event time of versions. ``deleted``: versions have a column :data:`DELETED`. State tables:
    ``name.rows``, the rows that wait until no further version can precede them; ``name.versions``; ``name.passing``,
    the versions at or after the watermark, by time.
    """

    kind: ClassVar[str] = "temporal_join"
    name: str
    on: tuple[str, ...]
    how: TemporalJoinKind
    as_of: str
    order_by: str
    deleted: bool
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input("rows", Distribution.BY_KEY, self.on, ROWS_THAT_STAY, event_time=self.as_of),
            Input("versions", Distribution.BY_KEY, self.on, VERSIONS_OF_KEYS, event_time=self.order_by),
        )

    @property
    def event_time_of_output(self) -> str | None:
        return self.as_of

    def late_before(self, input: int, late: int) -> int | None:
        return late

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        columns = joined_columns(self.name, self.on, frames)
        columns.check_times((self.as_of, self.order_by))
        shown = shown_of_versions(columns, self.order_by)
        rows, versions = self._rows(columns), self._versions(columns, shown)
        passing = self._passing(columns.key)
        fields = [*rows.table.owner_schema]
        for side in (rows, versions):
            fields += [side.table.value_schema.field(name) for name in side.shown]
        work = TemporalJoinWork(rows, versions, passing, self.how == "left", self.deleted)
        tables = (rows.table, versions.table, passing)
        return OperatorPlan(self.name, self.inputs, columns.key, tables, work, pa.schema(fields))

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {"on": list(self.on), "how": self.how, "as of": self.as_of, "order by": self.order_by}

    @property
    def grows(self) -> str | None:
        return "keeps a version of every key; it is meant for a bounded number of keys."

    def _rows(self, columns: JoinedColumns) -> Side:
        kept = columns.beside_key(ROWS)
        table = rows_table(self.name, f"{self.name}.rows", columns.key, kept, (), self.queryable)
        waiting = {
            "time": Column(name=TIME, type="timestamp"),
            "sub_key": (Column(name=ROW, type="binary"),),
            "joined": {"as_of": self.as_of},
            "expires": Expiry(clock="event", column=TIME, after=gone_after(0)),
        }
        return side_of(ROWS, self.on, columns.key, kept, self.as_of, table.model_copy(update=waiting), kept)

    def _versions(self, columns: JoinedColumns, shown: tuple[Column, ...]) -> Side:
        kept = columns.beside_key(VERSIONS)
        table = StateTable(
            id=f"{self.name}.versions",
            operator=self.name,
            kind=StateKind.MAP,
            key=columns.key,
            sub_key=(Column(name=TIME, type="timestamp"),),
            value=(*kept, Column(name=ROW, type="binary")),
            joined={"order_by": self.order_by},
            queryable=self.queryable,
        )
        return side_of(VERSIONS, self.on, columns.key, kept, self.order_by, table, shown)

    def _passing(self, key: tuple[Column, ...]) -> StateTable:
        return StateTable(
            id=f"{self.name}.passing",
            operator=self.name,
            kind=StateKind.VALUE,
            key=key,
            time=Column(name=TIME, type="timestamp"),
            value=(Column(name=WAITING, type="boolean"),),
            expires=Expiry(clock="event", column=TIME, after=gone_after(0)),
            queryable=False,
        )


def shown_of_versions(columns: JoinedColumns, order_by: str) -> tuple[Column, ...]:
    """The columns of versions in the output. Raises ``PipelineError`` for names that both sides have."""
    for column in columns.only(VERSIONS, DELETED):
        if column.type != "boolean":
            raise PipelineError(
                f"Operator {columns.operator!r}: deleted= of latest(..) is {column.type}. Use a condition or a "
                "boolean column that is true for deletions."
            )
    hidden = (order_by.casefold(), DELETED)
    shown = tuple(column for column in columns.beside_key(VERSIONS) if column.name.casefold() not in hidden)
    JoinedColumns(columns.operator, columns.key, (columns.beside_key(ROWS), shown)).check_clash()
    return shown


def side_of(
    number: int,
    on: tuple[str, ...],
    key: tuple[Column, ...],
    kept: tuple[Column, ...],
    time: str,
    table: StateTable,
    shown: tuple[Column, ...],
) -> Side:
    """A side of a join with versions. ``time``: the time column, in any spelling."""
    names, key_names = tuple(column.name for column in kept), tuple(column.name for column in key)
    carried = InputColumns.of(number, (*on, *names), on, key_names)
    spelled = next((name for name in names if name.casefold() == time.casefold()), time)
    return Side(number, carried, key_names, names, tuple(column.name for column in shown), spelled, 0, 0, table, None)


@dataclass(frozen=True)
class LatestJoinOperator(Operator):
    """Each row with the newest version of its key, by ``order_by``, including the versions of the same epoch.

    ``deleted``: versions have a column :data:`DELETED`. ``time``: the event time of rows and output, if any. State
    table: ``name.versions``, the newest version of each key.
    """

    kind: ClassVar[str] = "latest_join"
    name: str
    on: tuple[str, ...]
    how: TemporalJoinKind
    order_by: str
    deleted: bool
    time: str | None
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input("rows", Distribution.BY_KEY, self.on, ROWS_THAT_STAY, event_time=self.time),
            Input("versions", Distribution.BY_KEY, self.on, VERSIONS_OF_KEYS),
        )

    @property
    def event_time_of_output(self) -> str | None:
        return self.time

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        columns = joined_columns(self.name, self.on, frames)
        self._check_order(columns)
        shown, kept = shown_of_versions(columns, self.order_by), columns.beside_key(VERSIONS)
        table = StateTable(
            id=f"{self.name}.versions",
            operator=self.name,
            kind=StateKind.VALUE,
            key=columns.key,
            value=(*kept, Column(name=ROW, type="binary")),
            joined={"order_by": self.order_by},
            queryable=self.queryable,
        )
        # Rows are not stored; this table only defines the types of their columns.
        of_rows = columns.beside_key(ROWS)
        rows_table = table.model_copy(update={"value": of_rows})
        rows = side_of(ROWS, self.on, columns.key, of_rows, self.time or "", rows_table, of_rows)
        versions = side_of(VERSIONS, self.on, columns.key, kept, self.order_by, table, shown)
        fields = [*table.owner_schema, *rows.kept_schema]
        fields += [table.value_schema.field(name) for name in versions.shown]
        work = LatestJoinWork(rows, versions, self.how == "left")
        return OperatorPlan(self.name, self.inputs, columns.key, (table,), work, pa.schema(fields))

    def keeps(self, input: int) -> bool:
        return input == VERSIONS

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {"on": list(self.on), "how": self.how, "order by": self.order_by}

    @property
    def grows(self) -> str | None:
        return "keeps the newest version of every key; it is meant for a bounded number of keys."

    def warnings(self) -> Iterator[str]:
        time = f"as_of={self.time!r}" if self.time else "as_of=.., the event time of its rows"
        yield (
            f"Operator {self.name!r} joins a row with the newest version at the time of processing, so that its output "
            f"depends on the division of rows into epochs. For the version at the row's event time, use {time}."
        )

    def _check_order(self, columns: JoinedColumns) -> None:
        found = columns.only(VERSIONS, self.order_by)
        if not found:
            raise PipelineError(
                f"Operator {self.name!r}: latest(order_by={self.order_by!r}) is not a column of the versions outside "
                "the key. Name the column that orders versions."
            )
        if not is_key_type(found[0].type) and found[0].type not in FLOATING:
            raise PipelineError(
                f"Operator {self.name!r}: latest(order_by={self.order_by!r}) is {found[0].type}, which cannot be "
                "sorted by. Order by another column, or by a field of it."
            )
