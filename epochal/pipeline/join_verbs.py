"""The verbs that join streams: with tables, with other streams by event time, and with versions of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self, get_args

from epochal.contracts.stream_kind import same_columns
from epochal.declarations.expressions import Expression, as_expression
from epochal.declarations.intervals import LONGEST, fixed_interval
from epochal.declarations.names import check_name, listed
from epochal.declarations.time_to_live import refuse_time_to_live
from epochal.declarations.windows import WINDOW_END, WINDOW_START, WINDOW_TIME
from epochal.errors import PipelineError
from epochal.operators.contract import Operator
from epochal.operators.joins.interval_plan import IntervalJoinKind, IntervalJoinOperator
from epochal.operators.joins.version_plan import LatestJoinOperator, TemporalJoinKind, TemporalJoinOperator
from epochal.operators.joins.version_work import DELETED
from epochal.pipeline.event_time_verbs import TimedRelation
from epochal.pipeline.relation import StaticTable, key_columns

_DEFAULT_NAME: Final = "join"
_BOUNDS: Final = (
    '("-5 minutes", "10 minutes"), the lowest and the highest difference of the event times, right minus left'
)


@dataclass(frozen=True)
class LatestVersions:
    """The result of ``stream.latest(..)``: the rows of a stream as versions of their keys. Only ``join`` takes it."""

    stream: TimedRelation
    keys: tuple[str, ...]
    order_by: str
    deleted: bool


class JoinedRelation(TimedRelation):
    """A relation that can be joined with streams."""

    def join(
        self,
        other: StaticTable | TimedRelation | LatestVersions,
        on: str | Sequence[str],
        how: IntervalJoinKind = "inner",
        *,
        within: tuple[str, str] | None = None,
        as_of: str | None = None,
        name: str | None = None,
        queryable: bool = True,
        parallelism: int | None = None,
    ) -> Self:
        """Join with a table, with another stream, or with the latest versions of another stream.

        **With a table** (``pipeline.table(..)``) each row is joined when it is processed. ``how`` is inner, left,
        left_semi or left_anti.

        **With a stream** each row is joined with the rows whose event time is within two bounds, in any order of
        arrival::

            impressions.join(clicks, on="ad", within=("0 seconds", "1 hour"), how="left")

        is, in SQL, ``clicks.ts BETWEEN impressions.ts AND impressions.ts + INTERVAL 1 HOUR``. ``within`` has the lowest
        and the highest difference of the two event times (right minus left), both inclusive; a negative bound is
        earlier. Rows are kept in the state tables ``name.left`` and ``name.right`` (default name: ``join``) until no
        match can arrive; in outer joins a row without a match is output at that time. ``how`` is inner, left, right,
        full, left_semi or left_anti. Both streams need an event time. Without ``within``, rows of equal windows are
        joined, ``on=["page", "window_start", "window_end"]``, or rows of equal event time if both streams have it in a
        column of the same name that is in ``on``.

        **With** :meth:`latest` of a stream each row is joined with the version that was valid at its event time
        ``as_of``. ``how`` is inner or left. State tables: ``name.rows``, which wait for the watermark, and
        ``name.versions``. Without ``as_of`` a row is joined with the newest version at the time of processing,
        including the versions of the same epoch.

        ``parallelism``: the number of subtasks of the join of two streams; by default that of the application.
        """
        columns = key_columns(on)
        operator: Operator
        match other:
            case TimedRelation():
                stream = other
                _check_unused("a stream", as_of=as_of)
                operator = _interval_join(self, other, columns, how, within, name, queryable)
            case LatestVersions():
                stream = other.stream
                _check_unused("latest(..)", within=within)
                operator = _temporal_join(self, other, columns, how, as_of, name, queryable)
            case _:
                _check_unused("a table", within=within, as_of=as_of, name=name, parallelism=parallelism)
                return super().join(other, on, how)  # type: ignore[arg-type]  # which it checks
        self._check_same_pipeline(stream, "join")
        return self._operator(operator, stream, parallelism=parallelism)

    def latest(
        self, *keys: str, order_by: str, deleted: str | Expression | None = None, ttl: None = None
    ) -> LatestVersions:
        """Treat the rows of this stream as versions of their keys, for :meth:`join`::

            orders.join(rates.latest("currency", order_by="at"), on="currency", as_of="ordered_at")

        The version of a key with the greatest ``order_by`` is valid. A version for which the condition ``deleted`` is
        true ends the validity: no version is valid from then on. The output of the join does not have the column
        ``order_by``. The newest version of each key is kept without limit, so ``ttl`` is refused.
        """
        instead = (
            "A version is valid until the next version of its key, without limit. To end it, write a version for which "
            "deleted= is true."
        )
        refuse_time_to_live("latest()", ttl, instead)
        names = key_columns(keys, "latest() requires the key columns of the versions: latest('id', ..).")
        order: object = order_by
        if not isinstance(order, str) or not order:
            raise PipelineError(
                f"latest(): order_by is {order_by!r}: name the column that orders the versions of a key."
            )
        stream = self
        if deleted is not None:
            stream = self.with_columns(**{DELETED: as_expression("latest: deleted", deleted)})
        return LatestVersions(stream, names, order_by, deleted is not None)


def _check_unused(what: str, **arguments: object) -> None:
    """Raises ``PipelineError`` for an argument of ``join`` that has no meaning with ``what``."""
    for name, value in arguments.items():
        if value is not None:
            raise PipelineError(f"join() with {what} takes no {name}=. Leave it out.")


def _temporal_join(
    left: TimedRelation,
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
            f"join() with latest({listed(versions.keys)}) is on {listed(on)}, but the versions have other keys. "
            "Join on the columns of latest()."
        )
    for kind in get_args(TemporalJoinKind):
        if how == kind:
            chosen = check_name("an operator", name or _DEFAULT_NAME)
            if as_of is None:
                by, deleted, time = versions.order_by, versions.deleted, left.event_time
                return LatestJoinOperator(chosen, tuple(on), kind, by, deleted, time, queryable)
            times = _as_of(left, versions, as_of)
            return TemporalJoinOperator(chosen, tuple(on), kind, *times, versions.deleted, queryable)
    raise PipelineError(
        f"join() with latest(..) cannot be {how!r}: how must be one of {listed(get_args(TemporalJoinKind))}."
    )


def _as_of(left: TimedRelation, versions: LatestVersions, as_of: object) -> tuple[str, str]:
    """The event time columns of both streams. Only for these do watermarks show that all older rows have arrived."""
    of_rows = _event_time_of(left, "the joined stream")
    of_versions = _event_time_of(versions.stream, "the stream of latest(..)")
    if not isinstance(as_of, str) or as_of.casefold() != of_rows.casefold():
        raise PipelineError(
            f"join() with latest(..): as_of is {as_of!r}, but the event time of the rows is {of_rows!r}. Versions can "
            f"only be joined as of the event time, whose watermark shows that all older versions have arrived. Use "
            f"as_of={of_rows!r}."
        )
    if versions.order_by.casefold() != of_versions.casefold():
        raise PipelineError(
            f"latest(): order_by is {versions.order_by!r}, but the event time of its stream is {of_versions!r}. A join "
            f"with as_of orders versions by event time. Use order_by={of_versions!r}."
        )
    return of_rows, of_versions


def _interval_join(
    left: TimedRelation,
    right: TimedRelation,
    on: Sequence[str],
    how: object,
    within: object,
    name: str | None,
    queryable: bool,
) -> IntervalJoinOperator:
    """Raises ``PipelineError`` that names the argument, or the stream without event time, with the fix."""
    for kind in get_args(IntervalJoinKind):
        if how == kind:
            _check_complete(left, right, within)
            times = (_event_time_of(left, "the left stream"), _event_time_of(right, "the right stream"))
            columns, (low, high) = _key_and_bounds(on, within, times)
            chosen = check_name("an operator", name or _DEFAULT_NAME)
            return IntervalJoinOperator(chosen, columns, low, high, kind, times, queryable)
    raise PipelineError(
        f"join() of two streams cannot be {how!r}: how must be one of {listed(get_args(IntervalJoinKind))}."
    )


def _check_complete(left: TimedRelation, right: TimedRelation, within: object) -> None:
    """Raises ``PipelineError`` that names everything that is missing."""
    if within is not None:
        _bounds(within)
    without = [name for name, stream in (("left", left), ("right", right)) if stream.event_time is None]
    if (within is not None and len(without) < 2) or not without:
        return
    streams = f"the {' and the '.join(without)} stream {'have' if len(without) > 1 else 'has'} no event time"
    needed = "" if within is not None else ", and within= is missing"
    bounds = "" if within is not None else f", and add within={_BOUNDS}"
    raise PipelineError(
        f"join() of two streams: {streams}{needed}. The engine cannot determine how long to keep a row for a match. "
        f'Call with_watermark("ts", "10 seconds") on each stream first, after all verbs that rename or compute the '
        f"column{bounds}."
    )


def _key_and_bounds(
    on: Sequence[str], within: object, times: tuple[str, str]
) -> tuple[tuple[str, ...], tuple[int, int]]:
    """The key columns, and the bounds. Bounds are 0 if ``on`` requires equal times or windows.

    Raises ``PipelineError``.
    """
    (time, of_right), named = (name.casefold() for name in times), {name.casefold() for name in on}
    if time == of_right and time in named:
        key = tuple(name for name in on if name.casefold() != time)
        if not key:
            raise PipelineError(f"join() is on the event time {times[0]!r} only. Add a key column to on=.")
        if within is not None and _bounds(within) != (0, 0):
            raise PipelineError(
                f"join(): within is {within!r}, but the event time {times[0]!r} is in on=, which requires equal times. "
                "Remove one of the two."
            )
        return key, (0, 0)
    of_windows = time == of_right == WINDOW_TIME
    if within is None and of_windows and WINDOW_END in named:
        return tuple(on), (0, 0)
    if within is None and of_windows:
        raise PipelineError(
            f"join() of the output of windows: to join equal windows, add the window columns to on=: "
            f"on={[*on, *(name for name in (WINDOW_START, WINDOW_END) if name not in named)]}. To join rows whose "
            f"{WINDOW_TIME} is within two bounds, add within={_BOUNDS}."
        )
    return tuple(on), _bounds(within)


def _event_time_of(stream: TimedRelation, which: str) -> str:
    """The event time column. Raises ``PipelineError`` if the stream has none."""
    column = stream.event_time
    if column is None:
        raise PipelineError(
            f"join(): {which} has no event time, so the engine cannot determine how long to keep a row for a match. "
            'Call with_watermark("ts", "10 seconds") on it first, after all verbs that rename or compute the column.'
        )
    return column


def _bounds(within: object) -> tuple[int, int]:
    if isinstance(within, str) or not isinstance(within, Sequence) or len(within) != 2:
        raise PipelineError(
            f"join() of two streams: within is {within!r}: give two intervals, such as within={_BOUNDS}."
        )
    low, high = (fixed_interval("join(): within", bound, least=-LONGEST) for bound in within)
    if low > high:
        raise PipelineError(f"join(): within is {within!r}: the first bound is greater than the second. Swap them.")
    return low, high
