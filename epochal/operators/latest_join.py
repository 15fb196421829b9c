"""The join of a stream with the newest versions of another one's rows, as they are when a row is processed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.errors import PipelineError
from epochal.operators.contract import Distribution, Input, Operator, OperatorPlan
from epochal.operators.interval_join import ROWS_THAT_STAY
from epochal.operators.joined import JoinedColumns, joined_columns
from epochal.operators.temporal_join import (
    ROWS,
    VERSIONS,
    VERSIONS_OF_KEYS,
    TemporalJoinKind,
    shown_of_versions,
    side_of,
)
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.types import FLOATING, is_key_type
from epochal.tasks.join_rows import ROW
from epochal.tasks.latest_join import LatestJoinWork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class LatestJoinOperator(Operator):
    """Each row with the newest version of its key, by ``order_by``, after those of its epoch.

    ``deleted``: versions have a column that says that there is none. ``time``: the rows' event time, if they have one,
    which the output has as well. State table: ``name.versions``, the newest of each key.
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
        # Rows are not kept; the table says what types their columns have.
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
        return "keeps the newest version of every key that came; it is made for keys that have an end."

    def warnings(self) -> Iterator[str]:
        time = f"as_of={self.time!r}" if self.time else "as_of=.., the event time of its rows"
        yield (
            f"Operator {self.name!r} joins a row with the newest version that there is when it is processed: which "
            f"one depends on the epochs that rows come in. For the version that held when the row happened say {time}."
        )

    def _check_order(self, columns: JoinedColumns) -> None:
        found = columns.only(VERSIONS, self.order_by)
        if not found:
            raise PipelineError(
                f"Operator {self.name!r}: latest(order_by={self.order_by!r}) names no column of the versions beside "
                "the key. Name the column that says which of two versions is newer."
            )
        if not is_key_type(found[0].type) and found[0].type not in FLOATING:
            raise PipelineError(
                f"Operator {self.name!r}: latest(order_by={self.order_by!r}) is {found[0].type}, which cannot be "
                "sorted by. Order by another column, or by a field of it."
            )
