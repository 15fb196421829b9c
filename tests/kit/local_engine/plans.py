"""Planning of a pipeline's graph for the engine without Spark.

Operators are planned individually, over the columns that they read. This module replaces Spark's work before and after
their tasks: partial aggregates, the panes of windows, the time of a window's result. Of the verbs between operators
only ``union`` is supported; others would need Spark's expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import StructType

from epochal.aggregates.decomposition import decompose, part_name
from epochal.aggregates.mergeable import Simple
from epochal.aggregates.plan import Aggregation, AggregationPlan, OutputColumn, Part
from epochal.declarations.expressions import Expression
from epochal.declarations.feedback import HOP
from epochal.declarations.schemas import key_columns
from epochal.declarations.sides import LATE_OF_INPUT
from epochal.declarations.windows import WINDOW_END, WINDOW_START, WINDOW_TIME, GridWindows, SessionWindows
from epochal.engine.job import EpochPlan
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.joins.interval_plan import IntervalJoinPlan
from epochal.operators.process.plan import ProcessPlan
from epochal.operators.standing_queries.partials import PARTIALS
from epochal.operators.standing_queries.plan import StandingQueriesPlan
from epochal.operators.windows import panes
from epochal.operators.windows.plan import WindowedAggregate
from epochal.operators.windows.process_plan import WindowProcessOperator
from epochal.operators.windows.session_rows import TIME
from epochal.operators.windows.session_work import SESSION_END
from epochal.operators.windows.work import WINDOW
from epochal.pipeline.graph import (
    CloseNode,
    EventTimeNode,
    FeedbackNode,
    Graph,
    NodeId,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    StaticNode,
    TransformNode,
)
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import type_name
from epochal.tasks.windows import TIMESTAMP, Integers, pane_starts, times_of, timestamps
from tests.kit.local_engine.distribution import LocalInput
from tests.kit.local_engine.engine import (
    Change,
    LocalChange,
    LocalOperator,
    LocalPipeline,
    RowsChange,
    loop_stream,
)
from tests.kit.local_engine.event_time import LocalEventTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def local_pipeline(graph: Graph, sources: Mapping[str, pa.Schema]) -> LocalPipeline:
    """Plan the graph. ``sources``: the columns of each source. Raises ``ValueError`` for a verb that needs Spark."""
    return _Walk(graph, sources).run()


@dataclass(frozen=True)
class _Columns:
    """The part of a DataFrame that operators use for planning."""

    schema: StructType

    @property
    def columns(self) -> list[str]:
        return self.schema.names


class _Walk:
    """Walks the nodes of a graph. Each stream is represented by the names of the united streams, and its columns."""

    def __init__(self, graph: Graph, sources: Mapping[str, pa.Schema]) -> None:
        self._graph, self._sources = graph, sources
        self._streams: dict[NodeId, tuple[str, ...]] = {}
        self._columns: dict[NodeId, pa.Schema] = {}
        self._steps: list[LocalOperator | LocalEventTime | LocalChange] = []
        self._tails: dict[str, tuple[str, ...]] = {}
        self._sinks: dict[str, str] = {}
        self._kept_out: dict[str, pa.Schema] = {}

    def run(self) -> LocalPipeline:
        for node in self._graph.nodes:
            match node:
                case SourceNode():
                    self._add(node.id, node.name, self._sources[node.name])
                case EventTimeNode():
                    name = f"watermark {node.name}"
                    self._steps.append(LocalEventTime(name, node.name, node.event_time, self._streams[node.input]))
                    self._add(node.id, name, self._columns[node.input])
                case FeedbackNode():
                    self._add(node.id, loop_stream(node.name), node.feedback.output)
                case CloseNode():
                    self._tails[node.name] = self._streams[node.input]
                case TransformNode() if hasattr(node.function, "table"):
                    self._change(node)
                case TransformNode(label="union"):
                    self._streams[node.id] = tuple(name for id in node.inputs for name in self._streams[id])
                    self._columns[node.id] = _with_hops([self._columns[id] for id in node.inputs])
                case OperatorNode():
                    self._operator(node)
                case SideNode():
                    (owner,) = self._streams[node.input]
                    columns = self._columns[node.input] if owner.startswith("watermark ") else self._beside(node)
                    self._add(node.id, f"{owner}.{node.side}", columns)
                    self._kept_out |= {f"{owner}.{node.side}": columns} if node.by_engine else {}
                case SinkNode():
                    (self._sinks[node.name],) = self._streams[node.input]
                case TransformNode() | StaticNode():
                    raise ValueError(f"{node} needs Spark")
        return LocalPipeline(
            self._sources, tuple(self._steps), self._sinks, (), self._graph, self._kept_out, self._tails
        )

    def _add(self, id: NodeId, name: str, columns: pa.Schema) -> None:
        self._streams[id], self._columns[id] = (name,), columns

    def _change(self, node: TransformNode) -> None:
        (input,) = node.inputs
        change, name = cast(RowsChange, node.function), f"{node.label} {node.id}"
        columns = change.table(self._columns[input].empty_table()).schema
        self._steps.append(LocalChange(name, change, self._streams[input], columns))
        self._add(node.id, name, columns)

    def _operator(self, node: OperatorNode) -> None:
        columns = [self._columns[id] for id in node.inputs]
        operator = planned(node.operator, columns, tuple(self._streams[id] for id in node.inputs))
        self._steps.append(operator)
        self._add(node.id, operator.name, operator.output_columns)

    def _beside(self, node: SideNode) -> pa.Schema:
        owner = self._graph.node(node.input)
        assert isinstance(owner, OperatorNode)
        if not node.by_engine:
            operator = next(step for step in self._steps if step.name == owner.name)
            return cast(LocalOperator, operator).sides[node.side]
        columns = [self._columns[id] for id in owner.inputs]
        return columns[LATE_OF_INPUT.index(node.side)] if node.side in LATE_OF_INPUT else pa.unify_schemas(columns)


def planned(operator: Operator, rows: Sequence[pa.Schema], reads: tuple[tuple[str, ...], ...]) -> LocalOperator:
    """Plan an operator. ``rows``: the columns of each input. ``reads``: the streams united in each input."""
    plan = _windowed(operator, rows[0]) if isinstance(operator, WindowedAggregate) else _plan(operator, rows)
    found = _local(operator, plan, reads)
    return replace(found, in_epoch=partial(_in_epoch, operator, plan, reads)) if _is_chosen(plan) else found


def _is_chosen(plan: OperatorPlan) -> bool:
    return isinstance(plan, StandingQueriesPlan)


def _in_epoch(
    operator: Operator, plan: OperatorPlan, reads: tuple[tuple[str, ...], ...], epoch: EpochPlan
) -> LocalOperator:
    return _local(operator, plan.in_epoch(epoch.conditions, epoch.queries), reads)


def _local(operator: Operator, plan: OperatorPlan, reads: tuple[tuple[str, ...], ...]) -> LocalOperator:
    before, after = _around(operator, plan)
    order = plan.order_by if isinstance(plan, ProcessPlan) else ()
    return LocalOperator(
        plan.name,
        plan.work,
        plan.key,
        plan.tables,
        plan.output,
        tuple(LocalInput(input.distribution, (*order, *input.order_by)) for input in plan.inputs),
        plan.sides,
        plan.reconcile,
        reads,
        operator,
        before,
        after,
    )


def _plan(operator: Operator, rows: Sequence[pa.Schema]) -> OperatorPlan:
    frames = [cast("DataFrame", _Columns(from_arrow_schema(schema))) for schema in rows]
    return operator.plan(frames)


def _windowed(operator: WindowedAggregate, rows: pa.Schema) -> OperatorPlan:
    key = key_columns(operator.name, operator.keys, from_arrow_schema(rows))
    aggregation = local_aggregation(operator.name, key, operator.aggregations, operator.queryable, rows)
    tables = panes.tables(operator.windowing, aggregation.table)
    work = panes.merging_work(operator.windowing, aggregation, tables)
    output = pa.schema([column.to_arrow() for column in (*key, *WINDOW, *aggregation.table.value)])
    return OperatorPlan(operator.name, operator.inputs, key, tables, work, output)


def _around(operator: Operator, plan: OperatorPlan) -> tuple[tuple[Change, ...], Change | None]:
    """Return the changes of each input's rows before the shuffle, and the change of the task's output."""
    match operator:
        case WindowedAggregate():
            return (partial(_partials, operator, plan),), partial(_timed, len(plan.key) + len(WINDOW))
        case WindowProcessOperator():
            return (partial(_with_pane, operator, plan),), partial(_timed, len(plan.output))
    if isinstance(plan, IntervalJoinPlan):
        sides = (plan.work.left, plan.work.right)
        return tuple(partial(_selected, side.columns.names) for side in sides), None
    if isinstance(plan, StandingQueriesPlan):
        return (partial(_standing_partials, plan),), None
    return (), None


def _standing_partials(plan: StandingQueriesPlan, rows: pa.Table) -> pa.Table:
    found = plan.partials(rows.to_batches()) if plan.answered else ()
    return pa.Table.from_batches(list(found), PARTIALS)


def _with_hops(united: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of a union; it has hops if one of its streams has them."""
    return next((columns for columns in united if HOP in columns.names), united[0])


def _selected(names: Sequence[str], rows: pa.Table) -> pa.Table:
    return rows.select(list(names))


def _with_pane(operator: WindowProcessOperator, plan: OperatorPlan, rows: pa.Table) -> pa.Table:
    windows, time = operator.windowing.windows, plan.tables[0].time
    times = _times(rows, operator.event_time)
    if time is None:  # sessions
        return rows.append_column(TIME, timestamps(times))
    assert isinstance(windows, GridWindows)  # other windows have no panes
    return rows.append_column(time.name, timestamps(pane_starts(windows, times)))


def _partials(operator: WindowedAggregate, plan: OperatorPlan, rows: pa.Table) -> pa.Table:
    aggregation, windows = plan.work.plan, operator.windowing.windows  # type: ignore[attr-defined]
    times, time = _times(rows, operator.event_time), plan.tables[0].time
    if isinstance(windows, SessionWindows):
        starts, ends = _sessions(rows.select(list(operator.keys)), times, windows.gap)
        bounds = {WINDOW_START: starts, SESSION_END: ends}
    else:
        assert time is not None  # panes
        bounds = {time.name: pane_starts(windows, times)}
    # Columns with the window names of a preceding operator are dropped.
    rows = rows.drop_columns([name for name in rows.column_names if name in bounds])
    for name, bound in bounds.items():
        rows = rows.append_column(name, timestamps(bound))
    return partials(aggregation, rows, (*operator.keys, *bounds))


def _sessions(keys: pa.Table, times: Integers, gap: int) -> tuple[Integers, Integers]:
    """Return the start and end of the rows of each row's key and bucket, an interval of length ``gap``."""
    starts, ends = times.copy(), times + gap
    of_bucket: dict[tuple[object, ...], list[int]] = {}
    for position, key in enumerate(keys.to_pylist()):
        of_bucket.setdefault((*key.values(), int(times[position]) // gap), []).append(position)
    for positions in of_bucket.values():
        starts[positions], ends[positions] = times[positions].min(), times[positions].max() + gap
    return starts, ends


def _times(rows: pa.Table, column: str) -> Integers:
    return times_of(rows[column].combine_chunks())


def _timed(position: int, rows: pa.Table) -> pa.Table:
    """Add the event time of a window's result, computed from the window's end."""
    ends = rows[WINDOW_END].cast(pa.int64())
    return rows.add_column(position, WINDOW_TIME, pc.subtract(ends, 1).cast(TIMESTAMP))


_FUNCTIONS: Final = ("count", "sum", "min", "max")


def local_aggregation(
    operator: str, key: tuple[Column, ...], aggregations: Sequence[Aggregation], queryable: bool, rows: pa.Schema
) -> AggregationPlan:
    """Plan an aggregation, as ``plan_aggregation`` does.

    Raises ``ValueError`` for anything except count, sum, min or max of an integer column.
    """
    parts, columns, kept = [], [], []
    for aggregation in aggregations:
        found = decompose(aggregation.name, aggregation.expression)
        (aggregate,) = found.aggregates
        written = str(found.remainder).strip("`")
        if not isinstance(aggregate, Simple) or written != part_name(0):
            raise ValueError(f"{aggregation.name}: {aggregation.expression} is not computed without Spark")
        function, argument = _called(aggregate.expression)
        type = "bigint" if function in ("count", "sum") else type_name(from_arrow_type(rows.field(argument).type))
        parts.append(Part(aggregation.name, aggregate, aggregate.partials(), (aggregation.name,)))
        columns.append(OutputColumn(aggregation.name, type, found.remainder))
        kept.append(Column(name=aggregation.name, type=type))
    table = StateTable(
        id=operator, operator=operator, kind=StateKind.AGGREGATE, key=key, value=tuple(kept), queryable=queryable
    )
    return AggregationPlan(operator=operator, table=table, parts=tuple(parts), columns=tuple(columns))


def partials(plan: AggregationPlan, rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Compute Spark's partial aggregates of an epoch: the columns ``by`` and the plan's partial columns of each
    group."""
    calls = [_called(part.partials[0].expression) for part in plan.parts]
    asked = [([], "count_all") if argument == "*" else (argument, function) for function, argument in calls]
    grouped = rows.group_by(list(by), use_threads=False).aggregate(asked)
    names = ["count_all" if argument == "*" else f"{argument}_{function}" for function, argument in calls]
    arrays = [grouped[name] for name in (*by, *names)]
    return pa.table(arrays, names=[*by, *(part.column for part in plan.parts)])


def _called(expression: Expression) -> tuple[str, str]:
    """Return the aggregate's function, and its column or ``*``."""
    call = expression.call
    (argument,) = call.arguments
    if call.name not in _FUNCTIONS:
        raise ValueError(f"{expression} is not computed without Spark")
    return call.name, str(argument).strip("`")
