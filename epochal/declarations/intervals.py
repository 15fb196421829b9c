"""Lengths of time: ``"1 hour"``, ``"1 day 30 minutes"``, parsed like Spark's intervals.

The grammar is that of Spark's ``window`` and ``withWatermark`` (its cast from string to interval): an optional word
``interval``, then numbers with units from year to microsecond, in any order. The parts are added. Only seconds can have
a fraction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from epochal.errors import PipelineError

SECOND: Final = 1_000_000
"""Microseconds of a second. The other lengths are in microseconds too."""
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
LONGEST: Final = 2**59
"""The longest length in microseconds, 18 thousand years. The sum of an event time and several lengths (a delay, a
window, an allowed lateness) fits into 64 bits."""

_MONTHS: Final = {"year": 12, "month": 1}
_DAYS: Final = {"week": 7, "day": 1}
_MICROSECONDS: Final = {"hour": HOUR, "minute": MINUTE, "second": SECOND, "millisecond": 1_000, "microsecond": 1}
_PART: Final = re.compile(
    r"\s*(?P<sign>[+-]?)\s*(?P<whole>\d+)?(?P<fraction>\.\d{0,9})?"
    r"\s+(?P<unit>year|month|week|day|hour|minute|second|millisecond|microsecond)s?(?=\s|$)",
    re.ASCII,
)
_FIRST_WORD: Final = re.compile(r"interval\s", re.ASCII)


@dataclass(frozen=True)
class Interval:
    """Separate months, days and microseconds, as in Spark: a month and, in a zone, a day have no fixed length."""

    months: int = 0
    days: int = 0
    microseconds: int = 0

    @property
    def fixed(self) -> int:
        """Days of 24 hours and microseconds, in microseconds, without the months."""
        return self.days * DAY + self.microseconds


def parsed_interval(what: str, text: object) -> Interval:
    """Parse an interval. Raises ``PipelineError`` that begins with ``what``, with an example."""
    if not isinstance(text, str):
        raise PipelineError(f"{what} is {text!r}: use an interval as text, such as '10 minutes'.")
    left = text.strip().lower()
    if word := _FIRST_WORD.match(left):
        left = left[word.end() :]
    total, position = Interval(), 0
    while position < len(left):
        part = _PART.match(left, position)
        if part is None or not _is_number(part):
            raise _no_interval(what, text)
        total, position = _sum(total, part), part.end()
    if position == 0:
        raise _no_interval(what, text)
    if abs(total.fixed) > LONGEST or max(abs(total.months), abs(total.days)) >= 2**31:
        raise PipelineError(f"{what} is {text!r}, which is longer than 18,000 years. Use a shorter one.")
    return total


def fixed_interval(what: str, text: object, *, least: int) -> int:
    """Parse an interval of fixed length, in microseconds. A day has 24 hours.

    Raises ``PipelineError`` that begins with ``what`` if the text is not an interval, has months, or is below ``least``
    (0: must not be negative; 1: must be greater than zero).
    """
    interval = parsed_interval(what, text)
    if interval.months:
        raise PipelineError(f"{what} is {text!r}: months and years have no fixed length. Use days or shorter units.")
    if interval.fixed < least:
        raise PipelineError(f"{what} is {text!r}: it must be {'longer than' if least else 'at least'} zero.")
    return interval.fixed


def written_interval(microseconds: int) -> str:
    """A length of time as text that can be parsed again: ``1 hour``, ``90 minutes``, ``250 milliseconds``."""
    for unit, length in (("day", DAY), *_MICROSECONDS.items()):
        if microseconds and microseconds % length == 0:
            number = microseconds // length
            return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
    return "0 seconds"


def _is_number(part: re.Match[str]) -> bool:
    if part["fraction"] is None:
        return part["whole"] is not None
    return part["unit"] == "second" and (part["whole"] is not None or len(part["fraction"]) > 1)


def _sum(total: Interval, part: re.Match[str]) -> Interval:
    sign, unit = -1 if part["sign"] == "-" else 1, part["unit"]
    number = sign * int(part["whole"] or 0)
    if unit in _MONTHS:
        return Interval(total.months + number * _MONTHS[unit], total.days, total.microseconds)
    if unit in _DAYS:
        return Interval(total.months, total.days + number * _DAYS[unit], total.microseconds)
    # Spark reads nanoseconds and truncates them to microseconds.
    fraction = sign * int((part["fraction"] or ".")[1:7].ljust(6, "0"))
    return Interval(total.months, total.days, total.microseconds + number * _MICROSECONDS[unit] + fraction)


def _no_interval(what: str, text: str) -> PipelineError:
    return PipelineError(
        f"{what} is {text!r}, which is not an interval. Use numbers with units, such as '10 minutes' or "
        "'1 hour 30 seconds'; units: year, month, week, day, hour, minute, second, millisecond, microsecond."
    )
