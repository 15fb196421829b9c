"""``aggregate(.., ttl="7 days")``: a group expires when it has had no row for the time to live. A later row of its key
starts a new group.

With ``deleted_when`` only groups in which that column is true expire: keys that a stream of change data has deleted. A
deleted key is kept for the time to live, so that a late, older row does not restore it. An operator that emits changes
retracts the row of a key when the key is deleted; its expiry then retracts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.aggregates.decomposition import part_name
from epochal.aggregates.mergeable import Extreme, Simple
from epochal.aggregates.plan import AggregationPlan
from epochal.contracts.conditions import BEGINNING
from epochal.contracts.stream_kind import CHANGES, StreamKind
from epochal.declarations import expressions
from epochal.declarations.event_time import microseconds as event_time_of
from epochal.declarations.expressions import to_column
from epochal.declarations.intervals import written_interval
from epochal.errors import PipelineError
from epochal.operators.aggregate import AggregateOperator, AggregatePlan, AggregateWork
from epochal.operators.declared import named
from epochal.operators.distribution import Input
from epochal.state.column_bytes import Mask
from epochal.state.expiry import Expiry, microseconds
from epochal.state.table import DELETED_AT, TOUCHED, StateTable
from epochal.tasks.operator import Subtask
from epochal.tasks.slices import SliceKeys
from epochal.tasks.touched import Times
from epochal.tasks.values import column_of

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class AggregateTtlOperator(AggregateOperator):
    """Aggregates per key over the epochs since the group began. State table: the operator's name.

    ``event_time``: the column of its input that rows count by, where the groups expire by event time.
    ``expires.deleted``: the output column in which a group has to be true to expire.
    """

    expires: Expiry = field(kw_only=True)
    event_time: str | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Input, ...]:
        (rows,) = super().inputs
        return (Input(rows.name, rows.distribution, rows.keys, rows.takes, event_time=self.event_time),)

    def plan(self, frames: Sequence[DataFrame]) -> AggregatePlan:
        plan = super().plan(frames)
        partials = plan.aggregation.table
        time = TOUCHED if self.expires.deleted is None else DELETED_AT
        for taken in (TOUCHED.name, time.name):
            if taken in {column.name.casefold() for column in partials.key}:
                raise PipelineError(f"Operator {self.name!r}: its state has a column {taken!r}. Rename the key column.")
        table = partials.model_copy(update={"value": (*partials.value, time), "expires": self.expires})
        deleted = None if self.expires.deleted is None else _kept_as_it_is(plan.aggregation, self.expires.deleted)
        return AggregateTtlPlan(
            self.name,
            self.inputs,
            table.key,
            (table,),
            AggregateTtlWork(plan.aggregation, plan.rows, table=table, deleted=deleted),
            plan.output,
            plan.aggregation,
            self.aggregations,
            plan.rows,
            named(self.event_time, frames[0].columns),
        )

    @property
    def grows(self) -> str | None:
        return None

    def details(self) -> dict[str, Any]:
        clock = {"ttl_on": "event_time"} if self.expires.clock == "event" else {}
        deleted = {} if self.expires.deleted is None else {"deleted_when": self.expires.deleted}
        return {**super().details(), "ttl": written_interval(self.expires.after), **clock, **deleted}


@dataclass(frozen=True)
class AggregateTtlPlan(AggregatePlan):
    """In event time Spark finds the latest row of each group, too."""

    event_time: str | None

    @cached_property
    def partials(self) -> list[SparkColumn]:
        partials = self.aggregation.partial_columns()
        if self.event_time is None:
            return partials
        latest = expressions.call("max", event_time_of(self.event_time))
        return [*partials, to_column(latest.alias(TOUCHED.name))]


@dataclass(frozen=True)
class AggregateTtlWork(AggregateWork):
    """The rows of ``table`` say beside the aggregates when their group was touched.

    ``deleted``: the state column that is true of deleted keys; only their rows have a time.
    """

    table: StateTable = field(kw_only=True)
    deleted: str | None = field(default=None, kw_only=True)

    def keys(self, subtask: Subtask, slice: pa.Table) -> SliceKeys:
        return SliceKeys.living(subtask, self.table, slice)

    def there(self, found: Mask, old: pa.Table, merged: pa.Table) -> tuple[Mask, Mask]:
        if self.deleted is None:
            return super().there(found, old, merged)
        return found & ~_is_true(old.column(self.deleted)), ~_is_true(merged.column(self.deleted))

    def beside(self, subtask: Subtask, slice: pa.Table, old: pa.Table, merged: pa.Table) -> Sequence[pa.Array]:
        type = self.table.value_schema.field(self._time).type
        touched = pa.array(self._touched(subtask, slice, old)).cast(type)
        if self.deleted is None:
            return (touched,)
        return (pc.if_else(pa.array(_is_true(merged.column(self.deleted))), touched, pa.scalar(None, type)),)

    @property
    def _time(self) -> str:
        assert self.table.expires is not None
        return self.table.expires.column

    def _touched(self, subtask: Subtask, slice: pa.Table, old: pa.Table) -> Times:
        """In event time, that of the latest row of the group so far, but none that rows would be late at: so that no
        group goes with the epoch that wrote it."""
        if TOUCHED.name not in slice.column_names:
            return np.full(slice.num_rows, subtask.epoch_time)
        latest: Times = column_of(slice, TOUCHED.name).to_numpy()
        before: Times = pc.fill_null(microseconds(old.column(self._time)), BEGINNING).to_numpy()
        touched: Times = np.maximum(np.maximum(latest, before), subtask.watermarks.late)
        return touched


def _is_true(column: pa.Array | pa.ChunkedArray) -> Mask:
    mask: Mask = np.asarray(pc.fill_null(column, False))
    return mask


def _kept_as_it_is(plan: AggregationPlan, name: str) -> str:
    """The state column that holds this boolean output column. Raises ``PipelineError`` where none does."""
    parts = {part_name(position): part for position, part in enumerate(plan.parts)}
    column = next(column for column in plan.columns if column.name == name)
    part = parts.get(str(column.remainder).strip("`"))
    if column.type != "boolean" or part is None or not isinstance(part.aggregate, (Simple, Extreme)):
        raise PipelineError(
            f"Operator {plan.operator!r}: deleted_when names column {name!r}, which must be one boolean aggregate: "
            f"max_by, min_by, max, min, bool_or or bool_and, such as {name}=\"max_by(operation = 'delete', version)\"."
        )
    return part.state_columns[0]


def with_time_to_live(
    operator: AggregateOperator, expires: Expiry, event_time: str | None, stream: StreamKind
) -> AggregateTtlOperator:
    """``operator`` whose groups expire. ``stream``: the kind of its input. Raises ``PipelineError`` with the fix."""
    where = f"Operator {operator.name!r} has a ttl"
    if stream == CHANGES:
        raise PipelineError(
            f"{where}, and its stream takes earlier rows back: what is taken back of a group that has expired is not "
            "there any more. Leave ttl out; a group of which all rows were taken back goes by itself."
        )
    if operator.changes and expires.deleted is None:
        raise PipelineError(
            f"{where} and changes=True: an aggregate over it would go on with groups that have expired, as no row "
            "takes them back. Leave ttl out; or leave changes=True out; or, for keys that the stream deletes, name the "
            "column that says so: deleted_when='gone'; or aggregate in windows, which end by themselves: "
            "key_by(..).window(..)."
        )
    return AggregateTtlOperator(
        operator.name,
        operator.keys,
        operator.aggregations,
        operator.queryable,
        operator.over_updates,
        operator.changes,
        expires=expires,
        event_time=event_time if expires.clock == "event" else None,
    )
