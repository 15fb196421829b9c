"""``aggregate`` over a stream of changes: previous rows are subtracted, new rows are added; a key may be deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.aggregates.change_rows import key_rows
from epochal.aggregates.decomposition import decompose
from epochal.aggregates.plan import AggregationPlan, plan_aggregation
from epochal.aggregates.retraction import ROWS, LeastOrGreatest, taking_back
from epochal.contracts.stream_kind import CHANGE, Accepted, Kind, StreamKind
from epochal.declarations.expressions import Expression
from epochal.declarations.references import columns_read
from epochal.declarations.schemas import key_columns
from epochal.declarations.spark_errors import at
from epochal.errors import PipelineError
from epochal.operators.aggregate.changes_work import COUNT, PLACE, AggregateChangesWork, Multiset, multiset_table
from epochal.operators.aggregate.plan import AggregateOperator, AggregatePlan
from epochal.operators.distribution import Distribution, Input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _only_changes(stream: StreamKind) -> str:
    return "Declare the aggregate again over the stream that it should read."


@dataclass(frozen=True)
class AggregateChangesOperator(AggregateOperator):
    """Aggregates per key over the current rows, without retracted ones. State tables: the operator's name; one more for
    each ``min`` and ``max``. ``changes_of``: the operator that emits the changes."""

    changes_of: str = ""

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, Accepted(frozenset({Kind.CHANGES}), _only_changes)),)

    def computes_of(self, input: int) -> frozenset[str] | None:
        return None

    def aggregation(self, frame: DataFrame) -> AggregationPlan:
        key = key_columns(self.name, self.keys, frame.schema)
        return plan_aggregation(self.name, key, self.aggregations, self.queryable, frame, over_changes=True)

    def plan(self, frames: Sequence[DataFrame]) -> AggregatePlan:
        aggregation = self.aggregation(frames[0])
        table = aggregation.table.model_copy(update={"changes_of": self.changes_of})
        multisets = tuple(
            Multiset(name, multiset_table(self.name, name, table.key), part.aggregate.largest)
            for part in aggregation.parts
            if isinstance(part.aggregate, LeastOrGreatest)
            for name in part.state_columns
        )
        rows = key_rows(aggregation, self.aggregations, self.changes)
        return AggregatePlan(
            self.name,
            self.inputs,
            table.key,
            (table, *(multiset.table for multiset in multisets)),
            AggregateChangesWork(aggregation, rows, multisets),
            rows.schema,
            aggregation,
            self.aggregations,
            rows,
        )

    @property
    def grows(self) -> str | None:
        """``None``: keys are deleted when all of their rows have been retracted. Only the input can grow."""
        return None

    def warnings(self) -> Iterator[str]:
        for aggregation in self.aggregations:
            where = f"Operator {self.name!r}, column {aggregation.name!r}"
            for aggregate in map(taking_back, decompose(where, aggregation.expression).aggregates):
                if aggregate.cost is not None:
                    yield f"{where}: {aggregation.expression} {aggregate.cost}"


def over_changes(operator: AggregateOperator, changes_of: str) -> AggregateChangesOperator:
    """``operator`` over the changes of another operator. Raises ``PipelineError`` with operator, column and fix."""
    where = f"Operator {operator.name!r}"
    if operator.over_updates:
        raise PipelineError(
            f"{where}: over_updates=True counts every change, and its stream retracts earlier rows. Remove "
            "over_updates; or remove changes=True from the operator that emits the stream."
        )
    for name in operator.keys:
        if name.casefold() in (CHANGE, ROWS, PLACE, COUNT):
            raise PipelineError(f"{where}: {name!r} cannot be a key over a stream of changes. Rename the column.")
    for aggregation in operator.aggregations:
        column = f"{where}, column {aggregation.name!r}"
        if isinstance(aggregation.expression, Expression) and CHANGE in (columns_read(aggregation.expression) or ()):
            raise PipelineError(f"{column}: {CHANGE!r} marks a row as added or retracted. Remove it.")
        with at(column):
            list(map(taking_back, decompose(column, aggregation.expression).aggregates))
    return AggregateChangesOperator(
        operator.name,
        operator.keys,
        operator.aggregations,
        operator.queryable,
        changes=operator.changes,
        changes_of=changes_of,
    )
