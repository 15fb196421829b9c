"""``aggregate``: Spark aggregates the epoch's rows by key; the task merges these partial aggregates into state.

With ``ttl="7 days"``, a group expires when it has had no row for the time to live. A later row of its key starts a new
group. With ``deleted_when`` only groups in which that column is true expire: keys that a stream of change data has
deleted. A deleted key is kept for the time to live, so that a late, older row does not restore it. An operator that
emits changes retracts the row of a key when the key is deleted; its expiry then retracts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.aggregates import failed_columns
from epochal.aggregates.change_rows import KeyRows, key_rows
from epochal.aggregates.decomposition import decompose, part_name
from epochal.aggregates.mergeable import Extreme, Simple
from epochal.aggregates.plan import Aggregation, AggregationPlan, plan_aggregation
from epochal.contracts.stream_kind import ALL_BUT_CHANGES, CHANGES, Accepted, Kind, StreamKind, upsert
from epochal.declarations import expressions
from epochal.declarations.determinism import check_clock
from epochal.declarations.event_time import microseconds as event_time_of
from epochal.declarations.expressions import Expression, to_column
from epochal.declarations.intervals import written_interval
from epochal.declarations.references import columns_needed
from epochal.declarations.schemas import key_columns
from epochal.declarations.spark_errors import at
from epochal.errors import EpochalError, PipelineError
from epochal.operators.aggregate.work import AggregateTtlWork, AggregateWork
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input, Subtasks, placed, with_control, with_marks
from epochal.state.expiry import Expiry
from epochal.state.table import DELETED_AT, TOUCHED
from epochal.state.type_names import quoted
from epochal.tasks.keys import named
from epochal.tasks.subtask_rows import MARK
from epochal.tasks.task_output import PassthroughColumn

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def _over_updates(stream: StreamKind) -> str:
    return (
        "Its aggregates would count a key again with each new value, and would depend on the division of rows into "
        "epochs. Declare the previous aggregate with changes=True, and use only select, where, with_columns and drop "
        "between the two, so that earlier values are retracted. Or aggregate the rows that the previous operator "
        "reads. Or, to count every change, use aggregate(.., over_updates=True)."
    )


ROWS_THAT_STAY = Accepted(frozenset({Kind.APPEND}), _over_updates)


@dataclass(frozen=True)
class AggregateOperator(Operator):
    """Aggregates per key over all epochs. State table: the operator's name."""

    kind: ClassVar[str] = "aggregate"
    name: str
    keys: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]
    queryable: bool
    over_updates: bool = False
    """True if to aggregate rows that replace earlier rows as independent rows."""
    changes: bool = False
    """True if the output also has the previous values of rows."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input("rows", Distribution.BY_KEY, self.keys, ALL_BUT_CHANGES if self.over_updates else ROWS_THAT_STAY),
        )

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        return CHANGES if self.changes else upsert(self.keys)

    def computes_of(self, input: int) -> frozenset[str] | None:
        return columns_of(self.aggregations)

    def aggregation(self, frame: DataFrame) -> AggregationPlan:
        """The plan of the aggregates over ``frame``. Raises ``PipelineError``, ``SchemaError``."""
        key = key_columns(self.name, self.keys, frame.schema)
        return plan_aggregation(self.name, key, self.aggregations, self.queryable, frame)

    def plan(self, frames: Sequence[DataFrame]) -> AggregatePlan:
        aggregation = self.aggregation(frames[0])
        table = aggregation.table
        rows = key_rows(aggregation, self.aggregations, changes=True) if self.changes else None
        output = pa.schema([column.to_arrow() for column in (*table.key, *table.value, *aggregation.computed)])
        return AggregatePlan(
            self.name,
            self.inputs,
            table.key,
            (table,),
            AggregateWork(aggregation, rows),
            rows.schema if rows else output,
            aggregation,
            self.aggregations,
            rows,
        )

    @property
    def computed_columns(self) -> Mapping[str, Any]:
        return {aggregation.name: aggregation.expression for aggregation in self.aggregations}

    def details(self) -> dict[str, Any]:
        columns = {aggregation.name: str(aggregation.expression) for aggregation in self.aggregations}
        said = {name: True for name in ("over_updates", "changes") if getattr(self, name)}
        return {"keys": list(self.keys), "columns": columns, **said}

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_aggregations(self.name, self.aggregations, frames[0])

    @property
    def grows(self) -> str | None:
        bound = "aggregate in windows" if self.changes else "use aggregate(.., ttl='7 days'), or aggregate in windows"
        return f"keeps every key. If the number of keys is unbounded, {bound}."

    def warnings(self) -> Iterator[str]:
        return costs(self.name, self.aggregations)


def columns_of(aggregations: Sequence[Aggregation]) -> frozenset[str] | None:
    """The columns that the aggregates are computed from, in lower case; ``None``: unknown."""
    computed: list[Expression] = []
    for aggregation in aggregations:
        if isinstance(aggregation.expression, Expression):
            computed.append(aggregation.expression)
        else:
            computed += [partial.computed for partial in aggregation.expression.partials()]
    return columns_needed(computed)


def check_aggregations(operator: str, aggregations: Sequence[Aggregation], frame: DataFrame) -> None:
    """Check that the aggregates are the same in every retry. Raises ``PipelineError`` with operator and column."""
    for aggregation in aggregations:
        if isinstance(aggregation.expression, Expression):
            with at(f"Operator {operator!r}, column {aggregation.name!r}"):
                check_clock(aggregation.expression, frame)


def costs(operator: str, aggregations: Sequence[Aggregation]) -> Iterator[str]:
    """A warning for each aggregate that stores more than one number per key."""
    for aggregation in aggregations:
        where = f"Operator {operator!r}, column {aggregation.name!r}"
        for aggregate in decompose(where, aggregation.expression).aggregates:
            if aggregate.cost is not None:
                yield f"{where}: {aggregation.expression} {aggregate.cost}"


@dataclass(frozen=True)
class AggregatePlan(OperatorPlan):
    """Spark's own shuffle of the aggregation carries the marks, if it sends every key to its subtask."""

    aggregation: AggregationPlan
    aggregations: tuple[Aggregation, ...]
    rows: KeyRows | None
    """The rows that the task yields, if they are more than the merged partials."""

    @property
    def aggregated_columns(self) -> int:
        return len(self.aggregation.table.value)

    @cached_property
    def partials(self) -> list[SparkColumn]:
        """The columns that Spark aggregates over the epoch's rows. Created once: a column takes calls into the JVM."""
        return self.aggregation.partial_columns()

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        columns = self.columns_of_task
        known = {name: column for name, column in columns.items() if column is not None}
        if known and len(known) == len(columns):
            return ([to_column(_of_task(each).alias(name)) for name, each in known.items()],)
        return (self.rows or self.aggregation).finishing()

    @property
    def columns_of_task(self) -> Mapping[str, PassthroughColumn | None]:
        if self.rows is not None:
            return {}
        keys = {name: PassthroughColumn(name) for name in self.aggregation.keys}
        return keys | merged_columns(self.aggregation)

    def finished(self, rows: DataFrame) -> DataFrame:
        finished = super().finished(rows)
        return finished if self.rows is None else self.rows.without_unchanged(finished)

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        (frame,), keys = frames, self.inputs[0].keys
        if subtasks.match_spark_shuffle:
            by_key = with_marks(frame, subtasks).groupBy(MARK, *map(quoted, keys))
            return by_key.agg(*self.partials, *subtasks.control(keys))
        grouped = with_marks(frame.groupBy(*map(quoted, keys)).agg(*self.partials), subtasks)
        return placed(with_control(grouped, keys, subtasks), subtasks)

    def located(self, frames: Sequence[DataFrame]) -> EpochalError | None:
        return failed_columns.located(self.aggregation, self.aggregations, self.partials, frames[0])


def merged_columns(plan: AggregationPlan) -> dict[str, PassthroughColumn | None]:
    """By output column, in order, the merged partial that it equals in its stored type; ``None`` if there is none."""
    parts = {part_name(position): part for position, part in enumerate(plan.parts)}
    kept = {column.name: column.type for column in plan.table.value}
    found: dict[str, PassthroughColumn | None] = {}
    for column in plan.columns:
        found[column.name] = None
        part = parts.get(str(column.remainder).strip("`"))
        if part is not None and part.aggregate.first_is_final and column.type in (None, kept[part.state_columns[0]]):
            found[column.name] = PassthroughColumn(part.state_columns[0], or_zero=part.aggregate.counts)
    return found


def _of_task(column: PassthroughColumn) -> Expression:
    value = expressions.column(column.column)
    return expressions.call("coalesce", value, expressions.call("lit", 0).cast("bigint")) if column.or_zero else value


@dataclass(frozen=True)
class AggregateTtlOperator(AggregateOperator):
    """Aggregates per key over the epochs since the group began. State table: the operator's name.

    ``event_time``: the event-time column of the input, if groups expire by event time. ``expires.deleted``: the output
    column that must be true in a group for it to expire.
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
        deleted = None if self.expires.deleted is None else _state_column(plan.aggregation, self.expires.deleted)
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
    """In event time, Spark also computes the time of the latest row of each group."""

    event_time: str | None

    @cached_property
    def partials(self) -> list[SparkColumn]:
        partials = self.aggregation.partial_columns()
        if self.event_time is None:
            return partials
        latest = expressions.call("max", event_time_of(self.event_time))
        return [*partials, to_column(latest.alias(TOUCHED.name))]


def _state_column(plan: AggregationPlan, name: str) -> str:
    """The state column that stores this boolean output column. Raises ``PipelineError`` if there is none."""
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
    """``operator`` with groups that expire. ``stream``: the kind of its input. Raises ``PipelineError`` with the
    fix."""
    where = f"Operator {operator.name!r} has a ttl"
    if stream == CHANGES:
        raise PipelineError(
            f"{where}, and its stream retracts earlier rows: a row of an expired group can no longer be retracted. "
            "Remove ttl; a group is deleted when all of its rows have been retracted."
        )
    if operator.changes and expires.deleted is None:
        raise PipelineError(
            f"{where} and changes=True: an aggregate over it would still include expired groups, as no row retracts "
            "them. Remove ttl; or remove changes=True; or, for keys that the stream deletes, name the column that "
            "marks them: deleted_when='gone'; or aggregate in windows, which end: key_by(..).window(..)."
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
