"""The verbs of keyed and windowed streams that call no author's class: arguments are checked and become operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from epochal.aggregates.decomposition import decompose
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import Aggregation
from epochal.contracts.stream_kind import CHANGES
from epochal.declarations.expressions import Expression, as_expression
from epochal.declarations.intervals import fixed_interval
from epochal.declarations.names import check_name, closest
from epochal.declarations.time_to_live import check_clock_of_ttl, time_to_live
from epochal.declarations.windows import WINDOW_COLUMNS, SessionWindows, Windowing, windowing
from epochal.errors import PipelineError
from epochal.operators.aggregate.changes_plan import over_changes
from epochal.operators.aggregate.plan import AggregateOperator, with_time_to_live
from epochal.operators.contract import Operator
from epochal.operators.distinct.plan import DropDuplicatesOperator
from epochal.operators.top.plan import MOST, TopOperator, WindowTopOperator
from epochal.operators.windows.plan import SessionAggregateOperator, WindowAggregateOperator
from epochal.pipeline.graph import Graph, NodeId
from epochal.pipeline.kinds import kinds_of
from epochal.state.expiry import Expiry
from epochal.state.table import DELETED_AT

Columns = Mapping[str, str | Expression | MergeableAggregate]
"""The columns of ``aggregate``, as authors write them."""

_WITH_WATERMARK = 'stream.with_watermark("ts", "10 seconds").key_by(..).window(..)'


def aggregate(
    graph: Graph,
    node: NodeId,
    name: str,
    keys: tuple[str, ...],
    columns: Columns,
    *,
    queryable: bool,
    over_updates: bool,
    changes: bool,
    event_time: str | None,
    ttl: object,
    ttl_on: object,
    deleted_when: object,
) -> Operator:
    """The operator of ``key_by(..).aggregate(..)`` over ``node``. Raises ``PipelineError`` with the fix."""
    check_name("an operator", name)
    for option, value in (("over_updates", over_updates), ("changes", changes)):
        if not isinstance(value, bool):
            raise PipelineError(f"Operator {name!r}: {option} must be True or False; rename the column of this name.")
    expires = _expiry(name, ttl, ttl_on, deleted_when, columns)
    operator = AggregateOperator(name, keys, _aggregations(name, keys, columns), queryable, over_updates, changes)
    kind = kinds_of(graph)[node]
    if expires is not None:
        check_clock_of_ttl(f"Operator {name!r}", expires, event_time)
        return with_time_to_live(operator, expires, event_time, kind)
    return over_changes(operator, graph.operator_above(node)) if kind == CHANGES else operator


def drop_duplicates(
    name: str, keys: tuple[str, ...], event_time: str | None, within: str | None, queryable: bool
) -> DropDuplicatesOperator:
    """The operator of ``drop_duplicates``. Raises ``PipelineError`` with the fix."""
    check_name("an operator", name)
    after = None if within is None else fixed_interval(f"Operator {name!r}, within", within, least=1)
    if after is not None and event_time is None:
        raise PipelineError(
            f"Operator {name!r}: within={within!r} requires event time, and the stream has none. Call "
            "with_watermark(..) first."
        )
    return DropDuplicatesOperator(name, keys, event_time, after, queryable)


def top(
    name: str, keys: tuple[str, ...], count: int, by: str | Sequence[str], descending: bool, queryable: bool
) -> TopOperator:
    """The operator of ``key_by(..).top(..)``. Raises ``PipelineError`` with the fix."""
    return TopOperator(name, keys, *_ranking(name, count, by), descending, queryable)


def window_declaration(
    keys: tuple[str, ...], event_time: str | None, windows: object, allowed_lateness: object, emit: object
) -> tuple[str, Windowing]:
    """The event time and the arguments of ``window(..)``. Raises ``PipelineError`` with the fix."""
    declared = windowing(windows, allowed_lateness, emit)
    if event_time is None:
        raise PipelineError(f"window(): the stream has no event time. Declare it first: {_WITH_WATERMARK}.")
    for key in keys:
        if key.casefold() in WINDOW_COLUMNS:
            raise PipelineError(
                f"window(): the key column {key!r} has the name of a column that window() adds. Rename it before "
                f'key_by(): with_column("of_{key}", "{key}").'
            )
    return event_time, declared


def window_aggregate(
    name: str,
    keys: tuple[str, ...],
    event_time: str,
    windowing: Windowing,
    columns: Columns,
    queryable: bool,
    over_updates: bool,
) -> Operator:
    """The operator of ``window(..).aggregate(..)``. Raises ``PipelineError`` with the fix."""
    check_name("an operator", name)
    if not isinstance(over_updates, bool):
        raise PipelineError(f"Operator {name!r}: over_updates must be True or False; rename the column of this name.")
    if isinstance(ttl := columns.get("ttl"), str) and "(" not in ttl:
        raise PipelineError(
            f"Operator {name!r} has ttl={ttl!r}, but the state of a window is deleted when the window closes. Remove "
            "ttl; allowed_lateness keeps windows open longer."
        )
    aggregations = _aggregations(name, keys, columns)
    for column in columns:
        if column.casefold() in WINDOW_COLUMNS:
            raise PipelineError(
                f"Operator {name!r}, column {column!r}: a column of the window has this name. Rename the aggregate."
            )
    kind = SessionAggregateOperator if isinstance(windowing.windows, SessionWindows) else WindowAggregateOperator
    return kind(name, keys, event_time, windowing, aggregations, queryable, over_updates)


def window_top(
    name: str,
    keys: tuple[str, ...],
    event_time: str,
    windowing: Windowing,
    count: int,
    by: str | Sequence[str],
    descending: bool,
    queryable: bool,
) -> WindowTopOperator:
    """The operator of ``window(..).top(..)``. Raises ``PipelineError`` with the fix."""
    order = _ranking(name, count, by)
    return WindowTopOperator(name, keys, event_time, windowing, *order, descending, queryable)


def _aggregations(operator: str, keys: Collection[str], columns: Columns) -> tuple[Aggregation, ...]:
    """The aggregates by column. Raises ``PipelineError`` that names operator and column, with the fix."""
    if not columns:
        raise PipelineError(f"Operator {operator!r}: aggregate() requires a column, such as flights='count(*)'.")
    taken = {key.casefold() for key in keys}
    aggregations = []
    for column, expression in columns.items():
        what = f"Operator {operator!r}, column {column!r}"
        if column.startswith("_"):
            raise PipelineError(f"{what}: names that start with '_' are reserved for Epochal. Rename the column.")
        if column.casefold() in taken:
            raise PipelineError(f"{what}: a key column has this name. Rename the aggregate.")
        if not isinstance(expression, MergeableAggregate):
            expression = as_expression(what, expression)
        decompose(what, expression)
        aggregations.append(Aggregation(name=column, expression=expression))
    return tuple(aggregations)


def _expiry(
    operator: str, ttl: object, ttl_on: object, deleted_when: object, columns: Collection[str]
) -> Expiry | None:
    """The time to live of groups. ``columns``: the names of the aggregates.

    Raises ``PipelineError``, also where an aggregate has the name of one of the options.
    """
    for option, value in (("ttl", ttl), ("ttl_on", ttl_on), ("deleted_when", deleted_when)):
        if isinstance(value, (Expression, MergeableAggregate)) or (isinstance(value, str) and "(" in value):
            raise PipelineError(
                f"Operator {operator!r}: {option} sets when groups expire and cannot be {value!s}; rename the column "
                "of this name."
            )
    expires = time_to_live(f"Operator {operator!r}", ttl, ttl_on)
    if deleted_when is None:
        return expires
    if deleted_when not in columns:
        raise PipelineError(
            f"Operator {operator!r}: deleted_when names {deleted_when!r}, but the operator has no such aggregate. "
            f"Name the aggregate that is true for deleted keys.{closest(str(deleted_when), columns)}"
        )
    if expires is None:
        raise PipelineError(
            f"Operator {operator!r}: deleted_when requires ttl='7 days', the time for which a deleted key is kept, so "
            "that an older row of it that arrives later does not restore it."
        )
    return expires.model_copy(update={"column": DELETED_AT.name, "deleted": deleted_when})


def _ranking(name: str, count: int, by: str | Sequence[str]) -> tuple[int, tuple[str, ...]]:
    check_name("an operator", name)
    if type(count) is not int or not 1 <= count <= MOST:
        raise PipelineError(f"Operator {name!r}: top() keeps 1 to {MOST} rows of each key, not {count!r}.")
    columns = (by,) if isinstance(by, str) else tuple(by)
    if not columns or not all(columns):
        raise PipelineError(f"Operator {name!r}: top() requires the columns to order rows by, such as by='price'.")
    return count, columns
