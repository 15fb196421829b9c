"""Joins of two streams: what the verb's arguments say, checked, as an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from epochal.contracts.stream_kind import same_columns
from epochal.declarations.expressions import Expression, as_expression
from epochal.declarations.intervals import LONGEST, fixed_interval
from epochal.declarations.names import check_name, listed
from epochal.declarations.windowing import WINDOW_END, WINDOW_START, WINDOW_TIME
from epochal.errors import PipelineError
from epochal.operators.joins.interval_plan import IntervalJoinKind, IntervalJoinOperator
from epochal.operators.joins.version_plan import LatestJoinOperator, TemporalJoinKind, TemporalJoinOperator
from epochal.operators.joins.version_work import DELETED

if TYPE_CHECKING:
    from epochal.pipeline.stream import Stream

DEFAULT_NAME = "join"


def key_columns(on: object, otherwise: str = "") -> tuple[str, ...]:
    """The columns that are equal on both sides. Raises ``PipelineError``: ``otherwise``, where there are none."""
    columns = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Sequence) else ()
    if not columns or not all(isinstance(name, str) and name for name in columns):
        raise PipelineError(
            otherwise or "join() needs the names of the columns that are equal on both sides: on='origin'."
        )
    if len({name.casefold() for name in columns}) < len(columns):
        raise PipelineError(f"join() on {listed(columns)} names a column twice.")
    return columns


def check_unused(what: str, **arguments: object) -> None:
    """Raises ``PipelineError`` for an argument of :meth:`Stream.join` that means nothing with ``what``."""
    for name, value in arguments.items():
        if value is not None:
            raise PipelineError(f"join() with {what} takes no {name}=. Leave it out.")


@dataclass(frozen=True)
class LatestVersions:
    """``stream.latest(..)``: the rows of a stream as versions of their keys. They can only be joined with."""

    stream: Stream
    keys: tuple[str, ...]
    order_by: str
    deleted: bool


def latest(
    stream: Stream, keys: Sequence[object], order_by: object, deleted: str | Expression | None
) -> LatestVersions:
    """Raises ``PipelineError`` that names the argument."""
    names = key_columns(keys, "latest() needs the columns of the key that rows are versions of: latest('id', ..).")
    if not isinstance(order_by, str) or not order_by:
        raise PipelineError(
            f"latest(): order_by is {order_by!r}: name the column that says which of two versions is newer."
        )
    if deleted is not None:
        stream = stream.with_columns(**{DELETED: as_expression("latest: deleted", deleted)})
    return LatestVersions(stream, names, order_by, deleted is not None)


def temporal_join(
    left: Stream,
    versions: LatestVersions,
    on: Sequence[str],
    how: object,
    as_of: object,
    name: str | None,
    queryable: bool,
) -> TemporalJoinOperator | LatestJoinOperator:
    """Raises ``PipelineError`` that names the argument, or the stream without event time, with the fix."""
    if not same_columns(on, versions.keys):
        raise PipelineError(
            f"join() with latest({listed(versions.keys)}) is on {listed(on)}: versions are of other keys. "
            "Join on the columns that latest() names."
        )
    for kind in get_args(TemporalJoinKind):
        if how == kind:
            chosen = check_name("an operator", name or DEFAULT_NAME)
            if as_of is None:
                by, deleted, time = versions.order_by, versions.deleted, left.event_time
                return LatestJoinOperator(chosen, tuple(on), kind, by, deleted, time, queryable)
            times = _as_of(left, versions, as_of)
            return TemporalJoinOperator(chosen, tuple(on), kind, *times, versions.deleted, queryable)
    raise PipelineError(
        f"join() with latest(..) cannot be {how!r}: how is one of {listed(get_args(TemporalJoinKind))}."
    )


def _as_of(left: Stream, versions: LatestVersions, as_of: object) -> tuple[str, str]:
    """The event times of both: only of these it is known when all that is as old has come."""
    of_rows = event_time_of(left, "the stream that is joined")
    of_versions = event_time_of(versions.stream, "the stream of latest(..)")
    if not isinstance(as_of, str) or as_of.casefold() != of_rows.casefold():
        raise PipelineError(
            f"join() with latest(..): as_of is {as_of!r}, and the event time of the rows is {of_rows!r}: of no other "
            f"column it is known when all versions that are as old have come. Say as_of={of_rows!r}."
        )
    if versions.order_by.casefold() != of_versions.casefold():
        raise PipelineError(
            f"latest(): order_by is {versions.order_by!r}, and the event time of its stream is {of_versions!r}: as of "
            f"a time, versions go by event time. Say order_by={of_versions!r}."
        )
    return of_rows, of_versions


def interval_join(
    left: Stream, right: Stream, on: Sequence[str], how: object, within: object, name: str | None, queryable: bool
) -> IntervalJoinOperator:
    """Raises ``PipelineError`` that names the argument, or the stream without event time, with the fix."""
    for kind in get_args(IntervalJoinKind):
        if how == kind:
            _check_complete(left, right, within)
            times = (event_time_of(left, "the left stream"), event_time_of(right, "the right stream"))
            columns, (low, high) = _how_near(on, within, times)
            chosen = check_name("an operator", name or DEFAULT_NAME)
            return IntervalJoinOperator(chosen, columns, low, high, kind, times, queryable)
    raise PipelineError(f"join() of two streams cannot be {how!r}: how is one of {listed(get_args(IntervalJoinKind))}.")


_EXAMPLE = '("-5 minutes", "10 minutes"): the least and the greatest time of the right row less that of the left row'


def _check_complete(left: Stream, right: Stream, within: object) -> None:
    """Raises ``PipelineError`` with everything that is missing at the same time."""
    if within is not None:
        _bounds(within)
    without = [name for name, stream in (("left", left), ("right", right)) if stream.event_time is None]
    if (within is not None and len(without) < 2) or not without:
        return
    streams = f"the {' and the '.join(without)} stream {'have' if len(without) > 1 else 'has'} no event time"
    needed = "" if within is not None else ", and within= is missing"
    bounds = "" if within is not None else f", and give within={_EXAMPLE}"
    raise PipelineError(
        f"join() of two streams: {streams}{needed}. Without them it is not known how long a row has to wait for its "
        f'partner. Call with_watermark("ts", "10 seconds") on each stream first, after everything that renames or '
        f"computes the column{bounds}."
    )


def _how_near(on: Sequence[str], within: object, times: tuple[str, str]) -> tuple[tuple[str, ...], tuple[int, int]]:
    """The columns of the key, and the bounds: 0 where ``on`` says that times, or windows, are equal.

    Raises ``PipelineError``.
    """
    (time, of_right), named = (name.casefold() for name in times), {name.casefold() for name in on}
    if time == of_right and time in named:
        key = tuple(name for name in on if name.casefold() != time)
        if not key:
            raise PipelineError(f"join() is on the event time {times[0]!r} alone. Name a column of a key as well.")
        if within is not None and _bounds(within) != (0, 0):
            raise PipelineError(
                f"join(): within is {within!r}, and the event time {times[0]!r} is in on=, which says that both rows "
                "have the same. Leave one of the two out."
            )
        return key, (0, 0)
    of_windows = time == of_right == WINDOW_TIME
    if within is None and of_windows and WINDOW_END in named:
        return tuple(on), (0, 0)
    if within is None and of_windows:
        raise PipelineError(
            f"join() of what windows gave needs the windows in on=, to join equal ones: "
            f"on={[*on, *(name for name in (WINDOW_START, WINDOW_END) if name not in named)]}; or within=, two "
            f"intervals, to join rows whose {WINDOW_TIME} are so far apart."
        )
    return tuple(on), _bounds(within)


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
            f"join() of two streams: within is {within!r}: give two intervals, the least and the greatest time of the "
            'right row less that of the left row, such as within=("-5 minutes", "10 minutes").'
        )
    low, high = (fixed_interval("join(): within", bound, least=-LONGEST) for bound in within)
    if low > high:
        raise PipelineError(f"join(): within is {within!r}: the first bound is after the second. Swap them.")
    return low, high
