"""``distinct``: each key once, in the epoch of its first row. ``drop_duplicates``: the first row of each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from epochal.contracts.stream_kind import only_append
from epochal.declarations.intervals import written_interval
from epochal.declarations.schemas import carried_schema, key_columns
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import nullable
from epochal.operators.distinct.work import FIRST_AT, DistinctWork, DropDuplicatesWork
from epochal.operators.distribution import Distribution, Input, Subtasks
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import quoted
from epochal.tasks.keys import spelled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEEN: Final = Column(name="seen", type="boolean")
_TAKES: Final = only_append("Drop duplicates before the rows are aggregated.")


@dataclass(frozen=True)
class DistinctOperator(Operator):
    """State table: the operator's name, with ``seen`` for every key."""

    kind: ClassVar[str] = "distinct"
    name: str
    keys: tuple[str, ...]
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        key = key_columns(self.name, self.keys, frames[0].schema)
        seen = Column(name="seen", type="boolean")
        if seen.name in {column.name.casefold() for column in key}:
            raise PipelineError(f"Operator {self.name!r}: its state has a column {seen.name!r}. Rename the key column.")
        table = StateTable(
            id=self.name, operator=self.name, kind=StateKind.VALUE, key=key, value=(seen,), queryable=self.queryable
        )
        output = pa.schema([column.to_arrow() for column in key])
        return DistinctPlan(self.name, self.inputs, key, (table,), DistinctWork(table), output)

    def computes_of(self, input: int) -> frozenset[str] | None:
        return frozenset()

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys)}

    @property
    def grows(self) -> str | None:
        return "keeps every key. If the number of keys is unbounded, use drop_duplicates(within='1 day')."


@dataclass(frozen=True)
class DistinctPlan(OperatorPlan):
    """Spark removes duplicates, so that a task receives each key once."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return super().distributed([frames[0].select(*map(quoted, self.inputs[0].keys)).distinct()], subtasks)


@dataclass(frozen=True)
class DropDuplicatesOperator(Operator):
    """State table: the operator's name. It has ``seen`` for every key, or ``first_at``, the event time of the row that
    was emitted, until ``within`` (microseconds) after it. ``event_time``: the event-time column of the input, if
    any."""

    kind: ClassVar[str] = "drop_duplicates"
    name: str
    keys: tuple[str, ...]
    event_time: str | None
    within: int | None
    queryable: bool

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, _TAKES, event_time=self.event_time),)

    @property
    def event_time_of_output(self) -> str | None:
        return self.event_time

    def late_before(self, input: int, late: int) -> int | None:
        """With ``within`` rows before ``late`` are late: the rows that they may duplicate have expired."""
        return None if self.within is None else late

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        key = key_columns(self.name, self.keys, frames[0].schema)
        value = SEEN if self.within is None else FIRST_AT
        if value.name in {column.name.casefold() for column in key}:
            raise PipelineError(
                f"Operator {self.name!r}: its state has a column {value.name!r}. Rename the key column."
            )
        expires = None if self.within is None else Expiry(clock="event", column=value.name, after=self.within)
        table = StateTable(
            id=self.name,
            operator=self.name,
            kind=StateKind.VALUE,
            key=key,
            value=(value,),
            expires=expires,
            queryable=self.queryable,
        )
        output = nullable(carried_schema(frames[0].schema))
        columns = frames[0].columns
        keys, time = spelled(columns, self.keys), spelled(columns, (self.event_time or "",))
        work = DropDuplicatesWork(table, keys, time[0] if time else None, self.within)
        return OperatorPlan(self.name, self.inputs, key, (table,), work, output)

    def state_depends_on(self, input: int) -> frozenset[str] | None:
        return frozenset()

    def passes_on(self, input: int) -> bool:
        return True

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys), "within": None if self.within is None else written_interval(self.within)}

    def warnings(self) -> Iterator[str]:
        if self.within is None:
            yield (
                f"Operator {self.name!r}: drop_duplicates() without within= keeps every key forever: its state grows. "
                "Set the maximum time between duplicates: with_watermark(..).drop_duplicates(.., within='1 day')."
            )
