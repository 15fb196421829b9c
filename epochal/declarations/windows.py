"""Windows: tumbling, sliding, cumulative, session; allowed lateness, and when results are output.

Windows other than sessions are aligned to a *grid*: instants that divide time into *panes*. A window is a sequence of
whole panes, so that the cost of a row does not grow with the number of its windows ("No pane, no gain", reference [13]
of the thesis; general slicing is its reference [45]). A grid is fixed (a length in microseconds from the Unix epoch, as
in Spark's ``window``) or follows a calendar: days or months in a time zone, with the lengths that the zone defines.
Weeks begin on Mondays, as in Spark's ``date_trunc``; months are counted from January.

The author declares the zone; the zone of the session or the machine is not used. So the same rows have the same windows
everywhere.
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
"""Maximum number of panes of a window. Each pane is a row of state per key."""

_SHORTEST_MONTH: Final = 28
_MONDAY: Final = -3
"""The Monday before 1970-01-01, in days from it."""


@dataclass(frozen=True)
class FixedGrid:
    """Pane ``i`` begins at ``origin + i * pane``, in microseconds from the Unix epoch."""

    pane: int
    origin: int = 0


@dataclass(frozen=True)
class CalendarGrid:
    """Pane ``i`` begins at the start of its first day in ``zone``, plus ``shift``.

    The first day is ``origin + i * days`` days after 1970-01-01, or, if ``months`` is not 0, the first day of the month
    ``i * months`` after January 1970. A local time that does not exist is moved forward by the change of the clocks; of
    two equal local times the earlier one is used, as in Java, Spark and ``zoneinfo``.
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
    """Windows that consist of panes.

    A window of ``panes`` panes begins every ``every`` panes, counted from pane 0. If ``cumulative``, windows of 1, 2,
    .. ``panes`` panes begin there (``every`` is then equal to ``panes``). ``details`` describes them as JSON.
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
        """True if each row is in exactly one window, its pane."""
        return self.panes == 1

    def details(self) -> dict[str, Any]:
        """A description, also for upgrades: declarations with equal details define the same windows."""
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
    """Windows of rows of a key that are at most ``gap`` microseconds apart. A window ends ``gap`` after its last
    row."""

    gap: int

    def details(self) -> dict[str, Any]:
        """A description, also for upgrades: declarations with equal details define the same windows."""
        return {"kind": "session", "gap": written_interval(self.gap)}


Windows = GridWindows | SessionWindows


def tumbling(size: str, *, offset: str | None = None, zone: str | None = None) -> GridWindows:
    """Consecutive windows of one size: ``tumbling("1 hour")``.

    Without ``zone``, a day has 24 hours and windows are aligned to the Unix epoch, as in Spark. With ``zone``, as in
    ``tumbling("1 month", zone="Europe/Berlin")``, ``size`` is a number of days, weeks, months or years of the calendar
    of the zone. ``offset`` moves the start of the windows. Raises ``PipelineError``.
    """
    what = "tumbling(): size"
    return _on_a_grid("tumbling", (what, _length(what, size, zone)), None, offset, zone)


def sliding(size: str, slide: str, *, offset: str | None = None, zone: str | None = None) -> GridWindows:
    """Overlapping windows of one size that begin every ``slide``: ``sliding("1 hour", "5 minutes")``.

    ``offset`` and ``zone`` as in :func:`tumbling`. Raises ``PipelineError``, also if ``slide`` is longer than ``size``,
    or if a window would have more than 1,000 panes (a pane is the greatest common divisor of both).
    """
    first, second = "sliding(): size", "sliding(): slide"
    length, step = _length(first, size, zone), _length(second, slide, zone)
    _check_same_unit("sliding()", length, step)
    if _units(step) > _units(length):
        raise PipelineError(
            f"sliding(): slide {slide!r} is longer than size {size!r}, so that rows between two windows would be in "
            "no window. Use a slide that is at most size."
        )
    return _on_a_grid("sliding", (first, length), (second, step), offset, zone)


def cumulative(size: str, step: str, *, offset: str | None = None, zone: str | None = None) -> GridWindows:
    """Windows with a common start every ``size``, and ends every ``step``: ``cumulative("1 day", "1 hour")``.

    ``offset`` and ``zone`` as in :func:`tumbling`. Raises ``PipelineError``, also if ``size`` is not a multiple of
    ``step``, or is more than 1,000 times ``step``.
    """
    first, second = "cumulative(): size", "cumulative(): step"
    length, part = _length(first, size, zone), _length(second, step, zone)
    _check_same_unit("cumulative()", length, part)
    if _units(length) % _units(part):
        raise PipelineError(
            f"cumulative(): step {step!r} does not divide size {size!r}. Choose a step that divides it."
        )
    return _on_a_grid("cumulative", (first, length), (second, part), offset, zone)


def session(gap: str) -> SessionWindows:
    """Windows of rows of a key that are at most ``gap`` apart: ``session("30 minutes")``. Raises ``PipelineError``."""
    return SessionWindows(fixed_interval("session(): gap", gap, least=1))


def declared_windows(details: dict[str, Any]) -> Windows:
    """The windows that :meth:`GridWindows.details` or :meth:`SessionWindows.details` describe."""
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
    raise ValueError(f"unknown kind of windows: {details['kind']!r}")


def _on_a_grid(
    kind: str, size: tuple[str, Interval], slide: tuple[str, Interval] | None, offset: str | None, zone: str | None
) -> GridWindows:
    length, step = _units(size[1]), _units(slide[1]) if slide else _units(size[1])
    pane = gcd(length, step)
    if length // pane > MOST_PANES:
        raise PipelineError(
            f"{kind}(): a window would have {length // pane:,} panes of {_written(_like(size[1], pane))}; the maximum "
            "is "
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
                f"{what} is {text!r}: months and years have no fixed length. Add the zone of their calendar, such as "
                "zone='Europe/Berlin', or use days or shorter units."
            )
        return Interval(microseconds=fixed_interval(what, text, least=1))
    _check_zone(what.partition(":")[0], zone)
    interval = parsed_interval(what, text)
    if interval.microseconds or bool(interval.days) == bool(interval.months):
        raise PipelineError(
            f"{what} is {text!r}: with a zone it must be whole days (weeks) or whole months (years), not both. For "
            f"hours and shorter units, leave the zone out{_offset_for(interval, zone)}"
        )
    if interval.days < 0 or interval.months < 0:
        raise PipelineError(f"{what} is {text!r}: it must be longer than zero.")
    return interval


def _offset_for(interval: Interval, zone: str) -> str:
    """The end of a sentence: how to align windows of hours or less with the local time of a zone."""
    size = interval.microseconds
    if size <= 0 or interval.days or interval.months:
        return ", and add offset= if the difference of the zone to UTC is not a multiple of the window."
    year = datetime.now(UTC).year
    ahead = {datetime(year, month, 1, tzinfo=ZoneInfo(zone)).utcoffset() or timedelta() for month in range(1, 13)}
    offsets = {-(each // timedelta(microseconds=1)) % size for each in ahead}
    if offsets == {0}:
        return f": windows are the same in UTC and in {zone}."
    if len(offsets) == 1:
        return f" and add offset={written_interval(offsets.pop())!r} to align them with the local time of {zone}."
    return (
        f", and add offset= to move them from UTC. The clocks of {zone} change within a year, so that no offset "
        "follows "
        "them: choose a size that divides one hour, or whole days."
    )


def _check_zone(where: str, zone: object) -> None:
    # Python looks up zones as files: some systems find unlisted zones, or ignore case.
    if not isinstance(zone, str) or zone not in _zones():
        hint = closest(zone, _zones()) if isinstance(zone, str) else ""
        raise PipelineError(f"{where}: {zone!r} is not a time zone. Use a name such as 'Europe/Berlin'.{hint}")
    ZoneInfo(zone)


@cache
def _zones() -> frozenset[str]:
    """The names of all time zones. Listing them is slow, so each process does it once."""
    return frozenset(available_timezones())


def _check_same_unit(where: str, one: Interval, other: Interval) -> None:
    if bool(one.months) != bool(other.months):
        raise PipelineError(
            f"{where}: {_written(one)} and {_written(other)} have no common unit: a month has 28 to 31 days. Use "
            "days for both, or months for both."
        )


def _offset(kind: str, offset: str | None, period: Interval) -> int:
    if offset is None:
        return 0
    what = f"{kind}(): offset"
    shift = fixed_interval(what, offset, least=-LONGEST)
    shortest = period.fixed + period.months * _SHORTEST_MONTH * DAY
    if abs(shift) >= shortest:
        raise PipelineError(
            f"{what} is {offset!r}: it must be shorter than {_written(period)}, the distance between the starts of "
            "windows."
        )
    return shift


def _units(interval: Interval) -> int:
    """The number of units of an interval with a single unit."""
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
    """``window(..)``. ``allowed_lateness``: microseconds after its end during which a window still accepts rows."""

    windows: Windows
    allowed_lateness: int
    emit: Emit

    @property
    def hold(self) -> int:
        """How far the time of a result can be behind the watermark, in microseconds.

        A session closes when the watermark is past its end, a microsecond later than other windows, because a row at
        the end would extend it.
        """
        return self.allowed_lateness + isinstance(self.windows, SessionWindows)

    def state_details(self) -> dict[str, Any]:
        """The part of the details that the state of open windows depends on. A change would close windows
        incorrectly."""
        return {name: value for name, value in self.details().items() if name != "emit"}

    def details(self) -> dict[str, Any]:
        """A description."""
        said: dict[str, Any] = {"window": self.windows.details()}
        if self.allowed_lateness:
            said["allowed_lateness"] = written_interval(self.allowed_lateness)
        return {**said, "emit": self.emit}


def windowing(windows: object, allowed_lateness: object, emit: object) -> Windowing:
    """The checked arguments of ``window(..)``. Raises ``PipelineError`` that names the argument, with the fix."""
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
                    "window(session(..), emit='updates'): a row between two sessions merges them, so that "
                    "earlier results could not be retracted. Leave emit out: each session is output when it has "
                    "closed."
                )
            return Windowing(windows, lateness, known)
    raise PipelineError(f"window(): emit is {emit!r}; it must be 'final' or 'updates'.")
