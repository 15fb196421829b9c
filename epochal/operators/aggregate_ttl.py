"""``aggregate(.., ttl="7 days")``: a group that had no row for so long is gone, and begins anew with the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from epochal.state.expiry import Expiry, microseconds
from epochal.state.table import TOUCHED, StateTable
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
        if TOUCHED.name in {column.name.casefold() for column in partials.key}:
            raise PipelineError(
                f"Operator {self.name!r}: its state has a column {TOUCHED.name!r}. Rename the key column."
            )
        table = partials.model_copy(update={"value": (*partials.value, TOUCHED), "expires": self.expires})
        return AggregateTtlPlan(
            self.name,
            self.inputs,
            table.key,
            (table,),
            AggregateTtlWork(plan.aggregation, table=table),
            plan.output,
            plan.aggregation,
            self.aggregations,
            None,
            named(self.event_time, frames[0].columns),
        )

    @property
    def grows(self) -> str | None:
        return None

    def details(self) -> dict[str, Any]:
        clock = {"ttl_on": "event_time"} if self.expires.clock == "event" else {}
        return {**super().details(), "ttl": written_interval(self.expires.after), **clock}


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
    """The rows of ``table`` say beside the aggregates when their group was touched."""

    table: StateTable = field(kw_only=True)

    def keys(self, subtask: Subtask, slice: pa.Table) -> SliceKeys:
        return SliceKeys.living(subtask, self.table, slice)

    def beside(self, subtask: Subtask, slice: pa.Table, old: pa.Table) -> Sequence[pa.Array]:
        touched = self._touched(subtask, slice, old)
        return (pa.array(touched).cast(self.table.value_schema.field(TOUCHED.name).type),)

    def _touched(self, subtask: Subtask, slice: pa.Table, old: pa.Table) -> Times:
        """In event time, that of the latest row of the group so far, but none that rows would be late at: so that no
        group goes with the epoch that wrote it."""
        if TOUCHED.name not in slice.column_names:
            return np.full(slice.num_rows, subtask.epoch_time)
        latest: Times = column_of(slice, TOUCHED.name).to_numpy()
        before: Times = pc.fill_null(microseconds(old.column(TOUCHED.name)), BEGINNING).to_numpy()
        touched: Times = np.maximum(np.maximum(latest, before), subtask.watermarks.late)
        return touched


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
    if operator.changes:
        raise PipelineError(
            f"{where} and changes=True: an aggregate over it would go on with groups that have expired, as no row "
            "takes them back. Leave ttl out; or leave changes=True out; or aggregate in windows, which end by "
            "themselves: key_by(..).window(..)."
        )
    return AggregateTtlOperator(
        operator.name,
        operator.keys,
        operator.aggregations,
        operator.queryable,
        operator.over_updates,
        expires=expires,
        event_time=event_time if expires.clock == "event" else None,
    )
