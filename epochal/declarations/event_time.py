"""The declaration of event time; windows as Spark expressions, for rows before Spark's aggregation and shuffle.

Times are microseconds from the Unix epoch (``unix_micros``), so that results do not depend on the time zone of the
session. The same windows over NumPy arrays are in :mod:`epochal.tasks.windows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from epochal.contracts.conditions import EARLIEST
from epochal.declarations.expressions import Expression, sql
from epochal.declarations.intervals import DAY, fixed_interval, written_interval
from epochal.declarations.windows import CalendarGrid, FixedGrid, GridWindows, SessionWindows
from epochal.errors import PipelineError
from epochal.state.type_names import quoted

OnReject = Literal["count", "fail"]
_ON_REJECT: Final[tuple[OnReject, ...]] = ("count", "fail")


@dataclass(frozen=True)
class EventTime:
    """``with_watermark``: the event time column, and how far rows can be out of order.

    ``delay``, ``idle_after`` and ``max_ahead`` are microseconds. Without ``idle_after`` an input is never idle; without
    ``max_ahead`` future times are not rejected.
    """

    column: str
    delay: int
    idle_after: int | None = None
    max_ahead: int | None = None
    on_reject: OnReject = "count"

    def details(self) -> dict[str, Any]:
        """A description, also compared in an upgrade; lengths are text."""
        lengths = {"delay": self.delay, "idle_after": self.idle_after, "max_ahead": self.max_ahead}
        written = {name: None if length is None else written_interval(length) for name, length in lengths.items()}
        return {"column": self.column, **written, "on_reject": self.on_reject}


def event_time(
    column: object, delay: object, *, idle_after: object = None, max_ahead: object = None, on_reject: object = "count"
) -> EventTime:
    """The checked arguments of ``with_watermark``: the name of a column, and intervals as text.

    Raises ``PipelineError`` that names the argument.
    """
    if not isinstance(column, str) or not column:
        raise PipelineError(f"with_watermark(): the column is {column!r}: it must be the name of a timestamp column.")
    for known in _ON_REJECT:
        if on_reject == known:
            return EventTime(
                column,
                fixed_interval("with_watermark(): delay", delay, least=0),
                None if idle_after is None else fixed_interval("with_watermark(): idle_after", idle_after, least=1),
                None if max_ahead is None else fixed_interval("with_watermark(): max_ahead", max_ahead, least=0),
                known,
            )
    raise PipelineError(f"with_watermark(): on_reject is {on_reject!r}; it must be 'count' or 'fail'.")


def rejected(column: str, latest: int) -> Expression:
    """The condition of rejected rows: the event time is null, before ``EARLIEST`` or after ``latest``.

    ``latest``: the result of ``watermarks.latest_accepted``.
    """
    time = _micros(column)
    return sql(f"({time} IS NULL OR {time} > {_of_epoch(latest, time)} OR {time} < {_number(EARLIEST)})")


def before(column: str, bound: int) -> Expression:
    """The condition that the event time is before ``bound``, in microseconds: a late watermark, or
    ``tasks.windows.late_before``."""
    time = _micros(column)
    return sql(f"({time} < {_of_epoch(bound, time)})")


def late(column: str, bound: int) -> Expression:
    """The condition of late rows: :func:`before`, or without event time, which operators cannot process."""
    return sql(f"({_micros(column)} IS NULL OR {before(column, bound)})")


def microseconds(column: str) -> Expression:
    """The event time in microseconds from the Unix epoch."""
    return sql(_micros(column))


def pane_start(windows: GridWindows, column: str) -> Expression:
    """The start of the pane of the event time, a timestamp.

    If each row is in one window (``windows.one_per_row``), it is the start of the window.
    """
    grid, time = windows.grid, _micros(column)
    if isinstance(grid, FixedGrid):
        return sql(_timestamp(f"{time} - pmod({time} - {_number(grid.origin)}, {grid.pane}L)"))
    return sql(_timestamp(_boundary(grid, _pane(grid, time))))


def pane_end(windows: GridWindows, column: str) -> Expression:
    """The end of the pane of the event time, a timestamp: the start of the next pane."""
    grid, time = windows.grid, _micros(column)
    if isinstance(grid, FixedGrid):
        start = f"{time} - pmod({time} - {_number(grid.origin)}, {grid.pane}L)"
        return sql(_timestamp(f"{start} + {grid.pane}L"))
    return sql(_timestamp(_boundary(grid, f"({_pane(grid, time)} + 1)")))


def all_windows(windows: GridWindows, column: str) -> Expression:
    """All windows of the event time: an array, to be exploded, of structs of ``start`` and ``end``, timestamps.

    Ascending by start, then end.
    """
    grid = windows.grid
    pane, panes, every = _pane(grid, _micros(column)), windows.panes, windows.every

    def window(number: str, first: str, end: str) -> str:
        start, stop = (_timestamp(_boundary(grid, index)) for index in (first, end))
        return f"transform(sequence({number}), {_STEP} -> named_struct('start', {start}, 'end', {stop}))"

    if windows.cumulative:
        first = f"({_floored(pane, panes)} * {panes}L)"
        return sql(window(f"{pane} + 1, {first} + {panes}L", _floored(f"{_STEP} - 1", panes) + f" * {panes}L", _STEP))
    oldest = f"{_floored(f'{pane} - {panes}L', every)} + 1"
    first = f"({_STEP} * {every}L)"
    return sql(window(f"{oldest}, {_floored(pane, every)}", first, f"({first} + {panes}L)"))


def session_bounds(windows: SessionWindows, column: str) -> tuple[Expression, Expression]:
    """Start and end of the session of a single row: its event time, and ``gap`` later."""
    time = _micros(column)
    return sql(_timestamp(time)), sql(_timestamp(f"{time} + {windows.gap}L"))


def session_bucket(windows: SessionWindows, column: str) -> Expression:
    """The start of the interval of length ``gap`` that the event time is in, a timestamp.

    Rows of one key and interval are less than ``gap`` apart, so that they are in one session.
    """
    time = _micros(column)
    return sql(_timestamp(f"{time} - pmod({time}, {windows.gap}L)"))


def session_of_rows(windows: SessionWindows, column: str) -> tuple[Expression, Expression]:
    """Start and end of the session of rows that are aggregated together, at least one row."""
    time = _micros(column)
    return sql(_timestamp(f"min({time})")), sql(_timestamp(f"max({time}) + {windows.gap}L"))


_STEP: Final = "_step"
"""The variable of lambdas. It hides a column of this name only within lambdas, which read no columns."""


def _micros(column: str) -> str:
    return f"unix_micros({quoted(column)})"


def _timestamp(micros: str) -> str:
    return f"timestamp_micros({micros})"


def _number(value: int) -> str:
    # Some versions of Spark have no literal for the lowest long.
    return f"{value}L" if value > -(2**63) else f"({value + 1}L - 1L)"


def _of_epoch(value: int, time: str) -> str:
    """``value``, which differs in each epoch; null for rows without ``time``.

    Spark writes a number into the code that it generates, so that each epoch would compile its classes again. An array
    is passed to the code instead. The index is always 0, which Spark does not know.
    """
    return f"get(array({_number(value)}), CAST({time} & 0L AS INT))"


def _floored(value: str, divisor: int) -> str:
    """The quotient, rounded down; ``div`` rounds towards zero."""
    if divisor == 1:
        return f"({value})"
    return f"((({value}) - pmod({value}, {divisor}L)) div {divisor}L)"


def _pane(grid: FixedGrid | CalendarGrid, time: str) -> str:
    """The index of the pane of ``time``."""
    if isinstance(grid, FixedGrid):
        return _floored(f"{time} - {_number(grid.origin)}", grid.pane)
    # Local time is not monotonic: when the clocks go back over a boundary, the same local time is in two panes. So the
    # boundaries decide, and the local time only selects the candidates.
    near = _nominal_pane(grid, time)
    return (
        f"(CASE WHEN {time} >= {_boundary(grid, f'({near} + 1)')} THEN {near} + 1 "
        f"WHEN {time} < {_boundary(grid, near)} THEN {near} - 1 ELSE {near} END)"
    )


def _nominal_pane(grid: CalendarGrid, time: str) -> str:
    local = f"unix_micros(from_utc_timestamp({_timestamp(time)}, '{grid.zone}')) - {_number(grid.shift)}"
    day = _once_floored(local, DAY)
    if grid.days:
        return _once_floored(f"{day} - {_number(grid.origin)}", grid.days)
    date = f"date_from_unix_date(CAST({day} AS INT))"
    return _once_floored(f"(year({date}) - 1970) * 12L + month({date}) - 1L", grid.months)


def _once_floored(value: str, divisor: int) -> str:
    """:func:`_floored` with ``value`` in it once, as these nest; for values between -2**62 and 2**62."""
    above = -(-(2**62) // divisor)
    return f"(({value} + {above * divisor}L) div {divisor}L - {above}L)"


def _boundary(grid: FixedGrid | CalendarGrid, index: str) -> str:
    """The start of pane ``index``, in microseconds."""
    if isinstance(grid, FixedGrid):
        return f"({index} * {grid.pane}L + {_number(grid.origin)})"
    if grid.days:
        day = f"({index} * {grid.days}L + {_number(grid.origin)})"
    else:
        month = f"({index} * {grid.months}L)"
        day = f"unix_date(add_months(DATE'1970-01-01', CAST({month} AS INT)))"
    local = f"{day} * {DAY}L + {_number(grid.shift)}"
    return f"unix_micros(to_utc_timestamp({_timestamp(local)}, '{grid.zone}'))"
