"""Joins of two streams: what the verb's arguments say, checked, as an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from epochal.declarations.intervals import LONGEST, fixed_interval
from epochal.declarations.names import check_name, listed
from epochal.errors import PipelineError
from epochal.operators.interval_join import IntervalJoinKind, IntervalJoinOperator

if TYPE_CHECKING:
    from epochal.pipeline.stream import Stream

DEFAULT_NAME = "join"


def key_columns(on: object) -> tuple[str, ...]:
    """The columns that are equal on both sides. Raises ``PipelineError``."""
    columns = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Sequence) else ()
    if not columns or not all(isinstance(name, str) and name for name in columns):
        raise PipelineError("join() needs the names of the columns that are equal on both sides: on='origin'.")
    if len({name.casefold() for name in columns}) < len(columns):
        raise PipelineError(f"join() on {listed(columns)} names a column twice.")
    return columns


def interval_join(
    left: Stream, right: Stream, on: Sequence[str], how: object, within: object, name: str | None, queryable: bool
) -> IntervalJoinOperator:
    """Raises ``PipelineError`` that names the argument, or the stream without event time, with the fix."""
    for kind in get_args(IntervalJoinKind):
        if how == kind:
            low, high = _bounds(within)
            times = (event_time_of(left, "the left stream"), event_time_of(right, "the right stream"))
            chosen = check_name("an operator", name or DEFAULT_NAME)
            return IntervalJoinOperator(chosen, tuple(on), low, high, kind, times, queryable)
    raise PipelineError(f"join() of two streams cannot be {how!r}: how is one of {listed(get_args(IntervalJoinKind))}.")


def event_time_of(stream: Stream, which: str) -> str:
    """The column that says when a row happened. Raises ``PipelineError`` where nothing says so."""
    column = stream.event_time
    if column is None:
        raise PipelineError(
            f"join(): {which} has no event time, so that nobody can know how long a row has to wait for its partner. "
            'Call with_watermark("ts", "10 seconds") on it first, after everything that renames or computes the column.'
        )
    return column


def _bounds(within: object) -> tuple[int, int]:
    if isinstance(within, str) or not isinstance(within, Sequence) or len(within) != 2:
        raise PipelineError(
            f"join(): within is {within!r}: give two intervals, the least and the greatest time of the right row less "
            'that of the left row, such as within=("-5 minutes", "10 minutes").'
        )
    low, high = (fixed_interval("join(): within", bound, least=-LONGEST) for bound in within)
    if low > high:
        raise PipelineError(f"join(): within is {within!r}: the first bound is after the second. Swap them.")
    return low, high
