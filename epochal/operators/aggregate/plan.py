"""``aggregate``: Spark aggregates the epoch's rows, the task merges these partials into state. No step per row."""

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
        "Its aggregates would count a key again with each new value, so that they would depend on how rows fell into "
        "epochs. Say changes=True where the aggregate before it is declared, and let nothing but select, where, "
        "with_columns and drop be between the two: then earlier values are taken back. Or aggregate the rows that the "
        "operator before it reads; or, where every change is to count, say aggregate(.., over_updates=True)."
    )


ROWS_THAT_STAY = Accepted(frozenset({Kind.APPEND}), _over_updates)


@dataclass(frozen=True)
class AggregateOperator(Operator):
    """Aggregates per key over all epochs so far. State table: the operator's name."""

    kind: ClassVar[str] = "aggregate"
    name: str
    keys: tuple[str, ...]
    aggregations: tuple[Aggregation, ...]
    queryable: bool
    over_updates: bool = False
    """Whether rows that replace earlier ones are to be aggregated as if each stood for itself."""
    changes: bool = False
    """Whether to give rows as they were, too."""

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
        """How the aggregates are computed over ``frame``. Raises ``PipelineError``, ``SchemaError``."""
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
        bound = "aggregate in windows" if self.changes else "say aggregate(.., ttl='7 days'), or aggregate in windows"
        return f"keeps every key that came. Where keys have no end, {bound}."

    def warnings(self) -> Iterator[str]:
        return costs(self.name, self.aggregations)


def columns_of(aggregations: Sequence[Aggregation]) -> frozenset[str] | None:
    """The columns that the aggregates are computed of, in small letters; ``None``: not known."""
    computed: list[Expression] = []
    for aggregation in aggregations:
        if isinstance(aggregation.expression, Expression):
            computed.append(aggregation.expression)
        else:
            computed += [partial.computed for partial in aggregation.expression.partials()]
    return columns_needed(computed)


def check_aggregations(operator: str, aggregations: Sequence[Aggregation], frame: DataFrame) -> None:
    """Do they compute the same in every retry? Raises ``PipelineError`` that names operator and column."""
    for aggregation in aggregations:
        if isinstance(aggregation.expression, Expression):
            with at(f"Operator {operator!r}, column {aggregation.name!r}"):
                check_clock(aggregation.expression, frame)


def costs(operator: str, aggregations: Sequence[Aggregation]) -> Iterator[str]:
    """Of each aggregate that costs more than a number per key, what it costs."""
    for aggregation in aggregations:
        where = f"Operator {operator!r}, column {aggregation.name!r}"
        for aggregate in decompose(where, aggregation.expression).aggregates:
            if aggregate.cost is not None:
                yield f"{where}: {aggregation.expression} {aggregate.cost}"


@dataclass(frozen=True)
class AggregatePlan(OperatorPlan):
    """The marks ride through Spark's own aggregation shuffle where that puts every key on its subtask."""

    aggregation: AggregationPlan
    aggregations: tuple[Aggregation, ...]
    rows: KeyRows | None
    """What the task gives, where that is more than the merged partials."""

    @property
    def aggregated_columns(self) -> int:
        return len(self.aggregation.table.value)

    @cached_property
    def partials(self) -> list[SparkColumn]:
        """What Spark aggregates over the epoch's rows; made once, as every column costs calls into the JVM."""
        return self.aggregation.partial_columns()

    @cached_property
    def finishing(self) -> tuple[list[SparkColumn], ...]:
        columns = self.columns_of_task
        if columns is not None:
            return ([to_column(_of_task(each).alias(name)) for name, each in columns.items()],)
        return (self.rows or self.aggregation).finishing()

    @property
    def columns_of_task(self) -> Mapping[str, PassthroughColumn] | None:
        """Where each column is a key, or one merged partial in the type in which it is kept."""
        parts = {part_name(position): part for position, part in enumerate(self.aggregation.parts)}
        kept = {column.name: column.type for column in self.aggregation.table.value}
        found = {name: PassthroughColumn(name) for name in self.aggregation.keys}
        for column in self.aggregation.columns:
            part = parts.get(str(column.remainder).strip("`"))
            if part is None or not isinstance(part.aggregate, Simple) or kept[part.state_columns[0]] != column.type:
                return None
            found[column.name] = PassthroughColumn(part.state_columns[0], or_zero=part.aggregate.counts)
        return found if self.rows is None else None

    def finished(self, rows: DataFrame) -> DataFrame:
        finished = super().finished(rows)
        return finished if self.rows is None else self.rows.without_unchanged(finished)

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        (frame,), keys = frames, self.inputs[0].keys
        if subtasks.ride_spark_shuffle:
            by_key = with_marks(frame, subtasks).groupBy(MARK, *map(quoted, keys))
            return by_key.agg(*self.partials, *subtasks.control(keys))
        grouped = with_marks(frame.groupBy(*map(quoted, keys)).agg(*self.partials), subtasks)
        return placed(with_control(grouped, keys, subtasks), subtasks)

    def located(self, frames: Sequence[DataFrame]) -> EpochalError | None:
        return failed_columns.located(self.aggregation, self.aggregations, self.partials, frames[0])


def _of_task(column: PassthroughColumn) -> Expression:
    value = expressions.column(column.column)
    return expressions.call("coalesce", value, expressions.call("lit", 0).cast("bigint")) if column.or_zero else value


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
