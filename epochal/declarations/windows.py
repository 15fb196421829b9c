"""Windows as authors declare them: tumbling, sliding, cumulative, session.

Windows other than sessions stand on a *grid*: instants that cut time into *panes*, each window being a run of whole
panes, so that a row's cost does not grow with the number of windows it is in ("No pane, no gain", reference [13] of
the thesis; general slicing is its reference [45]). A grid is fixed (a length in microseconds from the Unix epoch, as
Spark's ``window``) or of the calendar: days or months in a time zone, which last as long as the zone says. Weeks begin
on Mondays, as in Spark's ``date_trunc``; months are counted from January.

The zone is always the author's, never that of a session or a machine: the same rows give the same windows anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from math import gcd
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, available_timezones

from epochal.declarations.intervals import DAY, LONGEST, Interval, fixed_interval, parsed_interval, written_interval
from epochal.declarations.names import closest
from epochal.errors import PipelineError

MOST_PANES: Final = 1_000
"""So many panes a window may have: each is a row of state per key."""

_SHORTEST_MONTH: Final = 28
_MONDAY: Final = -3
"""The Monday before 1970-01-01, in days from it."""


@dataclass(frozen=True)
class FixedGrid:
    """Pane ``i`` is from ``origin + i * pane`` to the next, in microseconds from the Unix epoch."""

    pane: int
    origin: int = 0


@dataclass(frozen=True)
class CalendarGrid:
    """Pane ``i`` begins where the clocks of ``zone`` show the first instant of its first day, and ``shift``.

    That is day ``origin + i * days`` from 1970-01-01, or, where ``months`` is not 0, the first of the month
    ``i * months`` from January 1970. A local time that does not exist is as much later as the clocks go forward; of two
    that are the same the earlier one counts: as in Java, Spark and ``zoneinfo``.
    """

    zone: str
    days: int = 0
    months: int = 0
    origin: int = 0
    shift: int = 0
    """Microseconds of local time."""


Grid = FixedGrid | CalendarGrid


@dataclass(frozen=True)
class GridWindows:
    """Windows that are runs of panes.

    Every ``every`` panes, counted from pane 0, a window of ``panes`` panes begins; if ``cumulative``, windows of
    1, 2, .. ``panes`` panes (``every`` is then the same as ``panes``). ``details`` says them to people, as JSON.
    """

    kind: str
    grid: Grid
    panes: int
    every: int
    cumulative: bool
    size: Interval
    slide: Interval | None

    @property
    def one_per_row(self) -> bool:
        """Whether each row is in one window, which is then its pane."""
        return self.panes == 1

    def details(self) -> dict[str, Any]:
        """For people, and for upgrades: declarations with equal details give the same windows."""
        grid = self.grid
        said: dict[str, Any] = {"kind": self.kind, "size": _written(self.size)}
        if self.slide is not None:
            said["step" if self.cumulative else "slide"] = _written(self.slide)
        if isinstance(grid, CalendarGrid):
            said["zone"] = grid.zone
        offset = grid.origin if isinstance(grid, FixedGrid) else grid.shift
        return said | ({"offset": written_interval(offset)} if offset else {})


@dataclass(frozen=True)
class SessionWindows:
    """Windows of a key's rows that are at most ``gap`` microseconds apart; a window ends ``gap`` after its last row."""

    gap: int

    def details(self) -> dict[str, Any]:
        """For people, and for upgrades: declarations with equal details give the same windows."""
        return {"kind": "session", "gap": written_interval(self.gap)}


Windows = GridWindows | SessionWindows


def tumbling(size: str, *, offset: str | None = None, zone: str | None = None) -> GridWindows:
    """Windows of one size, one after the other: ``tumbling("1 hour")``.

    Without ``zone`` a day is 24 hours and windows begin at the Unix epoch, as in Spark. With it (``tumbling("1 month",
    zone="Europe/Berlin")``) ``size`` is days, weeks, months or years of that zone's calendar. ``offset`` moves where
    windows begin. Raises ``PipelineError``.
    """
    what = "tumbling(): size"
    return _on_a_grid("tumbling", (what, _length(what, size, zone)), None, offset, zone)


def sliding(size: str, slide: str, *, offset: str | None = None, zone: str | None = None) -> GridWindows:
    """Windows of one size that begin every ``slide`` and overlap: ``sliding("1 hour", "5 minutes")``.

    ``offset`` and ``zone`` as in :func:`tumbling`. Raises ``PipelineError``, also where ``slide`` is longer than
    ``size``, or a window would have more than 1,000 panes (the greatest common divisor of both).
    """
    first, second = "sliding(): size", "sliding(): slide"
    length, step = _length(first, size, zone), _length(second, slide, zone)
    _check_same_unit("sliding()", length, step)
    if _units(step) > _units(length):
        raise PipelineError(
            f"sliding(): slide {slide!r} is longer than size {size!r}, so that rows between two windows would be in "
            "none. Make slide at most size."
        )
    return _on_a_grid("sliding", (first, length), (second, step), offset, zone)


def cumulative(size: str, step: str, *, offset: str | None = None, zone: str | None = None) -> GridWindows:
    """Windows that begin together every ``size`` and end a ``step`` apart: ``cumulative("1 day", "1 hour")``.

    ``offset`` and ``zone`` as in :func:`tumbling`. Raises ``PipelineError``, also where ``step`` does not divide
    ``size``, or does so more than 1,000 times.
    """
    first, second = "cumulative(): size", "cumulative(): step"
    length, part = _length(first, size, zone), _length(second, step, zone)
    _check_same_unit("cumulative()", length, part)
    if _units(length) % _units(part):
        raise PipelineError(
            f"cumulative(): step {step!r} does not divide size {size!r}. Choose a step of which size is a multiple."
        )
    return _on_a_grid("cumulative", (first, length), (second, part), offset, zone)


def session(gap: str) -> SessionWindows:
    """Windows of a key's rows that are at most ``gap`` apart: ``session("30 minutes")``. Raises ``PipelineError``."""
    return SessionWindows(fixed_interval("session(): gap", gap, least=1))


def declared_windows(details: dict[str, Any]) -> Windows:
    """The windows that :meth:`GridWindows.details` or :meth:`SessionWindows.details` say."""
    said = dict(details)
    match said.pop("kind"):
        case "session":
            return session(**said)
        case "tumbling":
            return tumbling(**said)
        case "sliding":
            return sliding(**said)
        case "cumulative":
            return cumulative(**said)
    raise ValueError(f"no windows are called {details['kind']!r}")


def _on_a_grid(
    kind: str, size: tuple[str, Interval], slide: tuple[str, Interval] | None, offset: str | None, zone: str | None
) -> GridWindows:
    length, step = _units(size[1]), _units(slide[1]) if slide else _units(size[1])
    pane = gcd(length, step)
    if length // pane > MOST_PANES:
        raise PipelineError(
            f"{kind}(): a window would have {length // pane:,} panes of {_written(_like(size[1], pane))}, and may have "
            f"{MOST_PANES:,}. Choose lengths with a greater common divisor."
        )
    accumulates = kind == "cumulative"
    period = size[1] if accumulates or slide is None else slide[1]
    shift = _offset(kind, offset, period)
    grid: Grid
    if zone is None:
        grid = FixedGrid(pane, shift)
    elif size[1].months:
        grid = CalendarGrid(zone, months=pane, shift=shift)
    else:
        grid = CalendarGrid(zone, days=pane, origin=0 if period.days % 7 else _MONDAY, shift=shift)
    every = _units(period) // pane
    return GridWindows(kind, grid, length // pane, every, accumulates, size[1], slide[1] if slide else None)


def _length(what: str, text: str, zone: str | None) -> Interval:
    if zone is None:
        interval = parsed_interval(what, text)
        if interval.months:
            raise PipelineError(
                f"{what} is {text!r}: months and years have no fixed length. Say whose calendar they are of, such as "
                "zone='Europe/Berlin', or give days or less."
            )
        return Interval(microseconds=fixed_interval(what, text, least=1))
    _check_zone(what.partition(":")[0], zone)
    interval = parsed_interval(what, text)
    if interval.microseconds or bool(interval.days) == bool(interval.months):
        raise PipelineError(
            f"{what} is {text!r}: with a zone it is whole days (weeks), or whole months (years), and not both. For "
            f"hours and less leave the zone out{_offset_for(interval, zone)}"
        )
    if interval.days < 0 or interval.months < 0:
        raise PipelineError(f"{what} is {text!r}: it must be longer than zero.")
    return interval


def _offset_for(interval: Interval, zone: str) -> str:
    """The end of a sentence: how windows of hours or less begin with the clocks of a zone."""
    size = interval.microseconds
    if size <= 0 or interval.days or interval.months:
        return ", and give offset= where the clocks of the zone are not whole windows from UTC."
    year = datetime.now(UTC).year
    ahead = {datetime(year, month, 1, tzinfo=ZoneInfo(zone)).utcoffset() or timedelta() for month in range(1, 13)}
    offsets = {-(each // timedelta(microseconds=1)) % size for each in ahead}
    if offsets == {0}:
        return f": they are the same in UTC and in {zone}."
    if len(offsets) == 1:
        return f" and give offset={written_interval(offsets.pop())!r}, with which they begin by the clocks of {zone}."
    return (
        f", and give offset= to begin them later than in UTC. The clocks of {zone} change within a year, so that no "
        "offset follows them: choose a size that divides one hour, or whole days."
    )


def _check_zone(where: str, zone: object) -> None:
    # Python looks zones up as files: on some systems it finds others than those it lists, and not by their case.
    if not isinstance(zone, str) or zone not in _zones():
        hint = closest(zone, _zones()) if isinstance(zone, str) else ""
        raise PipelineError(f"{where}: {zone!r} is no time zone. Give its name, such as 'Europe/Berlin'.{hint}")
    ZoneInfo(zone)


@cache
def _zones() -> frozenset[str]:
    """Listed once in a process: it takes as long as hundreds of windows."""
    return frozenset(available_timezones())


def _check_same_unit(where: str, one: Interval, other: Interval) -> None:
    if bool(one.months) != bool(other.months):
        raise PipelineError(
            f"{where}: {_written(one)} and {_written(other)} have no common measure: a month is 28 to 31 days. Give "
            "both in days, or both in months."
        )


def _offset(kind: str, offset: str | None, period: Interval) -> int:
    if offset is None:
        return 0
    what = f"{kind}(): offset"
    shift = fixed_interval(what, offset, least=-LONGEST)
    shortest = period.fixed + period.months * _SHORTEST_MONTH * DAY
    if abs(shift) >= shortest:
        raise PipelineError(
            f"{what} is {offset!r}: it must be shorter than {_written(period)}, which windows begin apart."
        )
    return shift


def _units(interval: Interval) -> int:
    """Of an interval that has one unit only, how many."""
    return interval.months or interval.days or interval.microseconds


def _like(interval: Interval, units: int) -> Interval:
    if interval.months:
        return Interval(months=units)
    return Interval(days=units) if interval.days else Interval(microseconds=units)


def _written(interval: Interval) -> str:
    if interval.months:
        return "1 month" if interval.months == 1 else f"{interval.months} months"
    return written_interval(interval.fixed)


Emit = Literal["final", "updates"]
_EMIT: Final[tuple[Emit, ...]] = ("final", "updates")

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TIME: Final = "window_time"
"""The event time of results: the last microsecond of the window."""
WINDOW_COLUMNS: Final = (WINDOW_START, WINDOW_END, WINDOW_TIME)


@dataclass(frozen=True)
class Windowing:
    """``window(..)``. ``allowed_lateness``: microseconds after its end until which rows still count for a window."""

    windows: Windows
    allowed_lateness: int
    emit: Emit

    @property
    def hold(self) -> int:
        """So far behind the watermark may the time of a result be, in microseconds.

        A session closes when the watermark is past its end, a microsecond later than other windows: a row at the end
        itself would make it longer.
        """
        return self.allowed_lateness + isinstance(self.windows, SessionWindows)

    def state_details(self) -> dict[str, Any]:
        """What open windows lie by in state: with another of it they would close too early, too late or twice."""
        return {name: value for name, value in self.details().items() if name != "emit"}

    def details(self) -> dict[str, Any]:
        """For people."""
        said: dict[str, Any] = {"window": self.windows.details()}
        if self.allowed_lateness:
            said["allowed_lateness"] = written_interval(self.allowed_lateness)
        return {**said, "emit": self.emit}


def windowing(windows: object, allowed_lateness: object, emit: object) -> Windowing:
    """What an author says, checked. Raises ``PipelineError`` that names the argument, with the fix."""
    if not isinstance(windows, GridWindows | SessionWindows):
        raise PipelineError(
            f"window() takes tumbling(..), sliding(..), cumulative(..) or session(..), not {windows!r}: "
            "window(tumbling('1 hour'))."
        )
    lateness = fixed_interval("window(): allowed_lateness", allowed_lateness, least=0)
    for known in _EMIT:
        if emit == known:
            if known == "updates" and isinstance(windows, SessionWindows):
                raise PipelineError(
                    "window(session(..), emit='updates'): two sessions become one when a row comes between them, and "
                    "what was said of them before could not be taken back. Leave emit out: each session goes out "
                    "when it has closed."
                )
            return Windowing(windows, lateness, known)
    raise PipelineError(f"window(): emit is {emit!r}: it is 'final' or 'updates'.")
