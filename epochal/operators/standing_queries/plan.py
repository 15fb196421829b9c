"""``standing_queries``: analysts' queries over a stream, which are added and dropped while the application runs.

The queries of an epoch are fixed when it opens. Its rows are aggregated before the shuffle, for all queries together;
the subtask of a query receives its partial aggregates, and merges them by window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from epochal.contracts.conditions import EpochConditions
from epochal.declarations.intervals import fixed_interval, written_interval
from epochal.declarations.names import require_columns
from epochal.errors import PipelineError
from epochal.operators.aggregate.plan import ROWS_THAT_STAY
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input, Subtasks
from epochal.operators.standing_queries.partials import (
    DOUBLES,
    GROUP,
    INTEGERS,
    LEAST_OF,
    PARTIALS,
    QUERY,
    WINDOW_END,
    PartialsTask,
)
from epochal.operators.standing_queries.work import (
    ANSWERED_AT,
    ERROR,
    FORGOTTEN_AT,
    GROUPS,
    ROWS,
    VALUES,
    WINDOW_START,
    StandingQueriesWork,
)
from epochal.standing_queries.active import ActiveQueries, StandingQuery, decoded
from epochal.standing_queries.query import DEFAULT, Limits
from epochal.standing_queries.types import is_readable
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import quoted
from epochal.tasks.arrow_tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY: Final = (Column(name=QUERY, type="bigint"),)
_TIME: Final = Column(name=WINDOW_END, type="timestamp")
_GROUP: Final = (Column(name=GROUP, type="string"),)
_CLOSED: Final = Expiry(clock="event", column=WINDOW_END, after=0)
OUTPUT: Final = pa.schema(
    [
        (QUERY, pa.int64()),
        (WINDOW_START, pa.timestamp("us", tz="UTC")),
        (WINDOW_END, pa.timestamp("us", tz="UTC")),
        (GROUP, pa.string()),
        (VALUES, pa.string()),
        (ERROR, pa.string()),
    ]
)


@dataclass(frozen=True)
class StandingQueriesOperator(Operator):
    """``limits``: those of a query; ``keep``: the time for which results can be looked up, in microseconds."""

    kind: ClassVar[str] = "standing_queries"
    name: str
    event_time: str
    limits: Limits
    keep: int

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, (QUERY,), ROWS_THAT_STAY, event_time=self.event_time),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        (frame,) = frames
        require_columns((self.event_time,), frame.columns)
        columns = {field.name: field.dataType.simpleString().lower() for field in frame.schema.fields}
        open, windows, results, late, before = self._tables()
        work = StandingQueriesWork(
            self.name, open, windows, results, late, before, self.limits.groups, ActiveQueries().encode()
        )
        return StandingQueriesPlan(
            self.name, self.inputs, _KEY, (results, open, windows, late, before), work, OUTPUT, self.event_time, columns
        )

    def _tables(self) -> tuple[StateTable, ...]:
        name = self.name
        common: dict[str, Any] = {"operator": name, "kind": StateKind.VALUE, "key": _KEY}
        lists = ((INTEGERS, "array<bigint>"), (DOUBLES, "array<double>"), (LEAST_OF, "array<bigint>"))
        return (
            StateTable(
                id=f"{name}.open",
                time=_TIME,
                sub_key=_GROUP,
                value=tuple(Column(name=column, type=type) for column, type in lists),
                expires=_CLOSED,
                queryable=False,
                **common,
            ),
            StateTable(
                id=f"{name}.windows",
                time=_TIME,
                value=(Column(name=GROUPS, type="bigint"),),
                expires=_CLOSED,
                queryable=False,
                **common,
            ),
            StateTable(
                id=name,
                time=_TIME,
                sub_key=_GROUP,
                value=(
                    Column(name=WINDOW_START, type="timestamp"),
                    Column(name=VALUES, type="string"),
                    Column(name=ERROR, type="string"),
                    Column(name=ANSWERED_AT, type="timestamp"),
                ),
                expires=Expiry(clock="processing", column=ANSWERED_AT, after=self.keep),
                **common,
            ),
            StateTable(id=f"{name}.late", value=(Column(name=ROWS, type="bigint"),), **common),
            StateTable(
                id=f"{name}.before",
                sub_key=_GROUP,
                value=(
                    _TIME,
                    Column(name=FORGOTTEN_AT, type="timestamp"),
                    Column(name=VALUES, type="string"),
                ),
                expires=Expiry(clock="event", column=FORGOTTEN_AT, after=0),
                queryable=False,
                **(common | {"kind": StateKind.MAP}),
            ),
        )

    def details(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "event_time": self.event_time,
            "windows": [written_interval(limits.least_window), written_interval(limits.greatest_window)],
            "limit": limits.queries,
            "groups": limits.groups,
            "keep": written_interval(self.keep),
        }


def standing_queries(
    name: str, event_time: str | None, windows: Sequence[str], limit: int, groups: int, keep: str
) -> StandingQueriesOperator:
    """The operator that an author declares. Raises ``PipelineError`` with the fix."""
    what = f"Operator {name!r}: standing_queries()"
    if event_time is None:
        raise PipelineError(
            f"{what} answers by window of event time, but the stream has no event time. Declare it: "
            "with_watermark(column, delay)."
        )
    if isinstance(windows, str) or len(windows) != 2:
        raise PipelineError(
            f"{what}: windows is {windows!r}. Specify the shortest and the longest: ('10 seconds', '1 day')."
        )
    shortest, longest = (fixed_interval(f"{what}: windows", each, least=1) for each in windows)
    if shortest > longest:
        raise PipelineError(f"{what}: windows is {windows!r}. Specify the shortest first.")
    for argument, value, most in (("limit", limit, 10_000), ("groups", groups, 1_000_000)):
        if type(value) is not int or not 1 <= value <= most:
            raise PipelineError(f"{what}: {argument} is {value!r}. Use a number from 1 to {most:,}.")
    limits = replace(DEFAULT, queries=limit, groups=groups, least_window=shortest, greatest_window=longest)
    return StandingQueriesOperator(name, event_time, limits, fixed_interval(f"{what}: keep", keep, least=1))


@dataclass(frozen=True)
class StandingQueriesPlan(OperatorPlan):
    """``columns``: the columns of the input, with their types. ``late``: the watermark of the epoch."""

    event_time: str
    columns: dict[str, str]
    late: int = 0

    def in_epoch(self, conditions: EpochConditions, queries: bytes) -> StandingQueriesPlan:
        if not queries:
            return self
        removed = conditions.queries.removed if conditions.queries is not None else ()
        work = replace(self.standing, queries=queries, removed=removed)
        return replace(self, work=work, late=conditions.watermarks(self.name).late)

    @property
    def standing(self) -> StandingQueriesWork:
        assert isinstance(self.work, StandingQueriesWork)
        return self.work

    @property
    def answered(self) -> tuple[StandingQuery, ...]:
        """The queries that the operator answers in the epoch."""
        return decoded(self.standing.queries).of(self.name)

    @cached_property
    def partials(self) -> PartialsTask:
        return PartialsTask(self.name, self.standing.queries, self.event_time, self.late)

    @property
    def read(self) -> list[str]:
        """The columns that the queries of the epoch read, and the time."""
        names = {self.event_time}.union(*(query.query.columns for query in self.answered))
        return [name for name in self.columns if name in names]

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        (frame,) = frames
        schema = from_arrow_schema(PARTIALS)
        if self.answered:
            partials = map_in_arrow(frame.select(*map(quoted, self.read)), self.partials, schema)
        else:
            # Without queries no row reaches Python, but all rows must be read for observations of the input.
            never = f"unix_micros({quoted(self.event_time)}) = {-(2**63)}"
            nulls = [
                f"CAST(NULL AS {field.dataType.simpleString()}) AS {quoted(field.name)}" for field in schema.fields
            ]
            partials = frame.where(never).selectExpr(*nulls)
        return super().distributed([partials], subtasks)


def problems_of(query: StandingQuery, columns: dict[str, str]) -> str | None:
    """The reason why a query cannot be answered over these columns; ``None`` if it can."""
    for expression in query.query.expressions:
        for each in expression.walk():
            if each.operation != "column":
                continue
            type = columns.get(each.value)
            if type != each.type or not is_readable(type):
                return f"column {each.value!r} was {each.type}, and is now {type or 'missing'}"
    return None
