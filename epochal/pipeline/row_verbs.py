"""The verbs that keep some of the rows of each key: what their authors said, checked, as operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from epochal.declarations.intervals import fixed_interval
from epochal.declarations.names import check_name
from epochal.declarations.windowing import Windowing
from epochal.errors import PipelineError
from epochal.operators.distinct.plan import DropDuplicatesOperator
from epochal.operators.top.plan import MOST, TopOperator, WindowTopOperator

EVERY: Final = "_every"
"""The key of what is of a whole stream."""


def drop_duplicates(
    name: str, keys: tuple[str, ...], event_time: str | None, within: str | None, queryable: bool
) -> DropDuplicatesOperator:
    """``event_time``: the stream's. Raises ``PipelineError`` with the fix."""
    check_name("an operator", name)
    after = None if within is None else fixed_interval(f"Operator {name!r}, within", within, least=1)
    if after is not None and event_time is None:
        raise PipelineError(
            f"Operator {name!r}: within={within!r} is a time between rows, and the stream does not say when they "
            "happened. Call with_watermark(..) first."
        )
    return DropDuplicatesOperator(name, keys, event_time, after, queryable)


def top(
    name: str, keys: tuple[str, ...], count: int, by: str | Sequence[str], descending: bool, queryable: bool
) -> TopOperator:
    """Raises ``PipelineError`` with the fix."""
    return TopOperator(name, keys, *_first_rows(name, count, by), descending, queryable)


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
    """Raises ``PipelineError`` with the fix."""
    order = _first_rows(name, count, by)
    return WindowTopOperator(name, keys, event_time, windowing, *order, descending, queryable)


def _first_rows(name: str, count: int, by: str | Sequence[str]) -> tuple[int, tuple[str, ...]]:
    check_name("an operator", name)
    if type(count) is not int or not 1 <= count <= MOST:
        raise PipelineError(f"Operator {name!r}: top() keeps 1 to {MOST} rows of each key, not {count!r}.")
    columns = (by,) if isinstance(by, str) else tuple(by)
    if not columns or not all(columns):
        raise PipelineError(f"Operator {name!r}: top() needs the columns to order rows by, such as by='price'.")
    return count, columns
