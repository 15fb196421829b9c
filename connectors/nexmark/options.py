"""Options of the Nexmark source: lengths of time, the first event's time, numbers within their bounds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from epochal.errors import OptionError

_MICROSECOND = timedelta(microseconds=1)
_START = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("milliseconds", "seconds", "minutes", "hours", "days")
_LONGEST_DAYS = 36_500
_LENGTH = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(unit[:-1] for unit in _UNITS)})s?\s*")


def length(name: str, value: object) -> int:
    """Microseconds of ``"10 seconds"`` or of a ``timedelta``. Raises ``OptionError`` for none, and past a century."""
    found: timedelta | None = value if isinstance(value, timedelta) else None
    if isinstance(value, str) and (match := _LENGTH.fullmatch(value.lower())):
        try:
            found = timedelta(**{f"{match[2]}s": float(match[1])})
        except OverflowError:
            found = None
    if found is None or not _MICROSECOND <= found <= timedelta(days=_LONGEST_DAYS):
        raise OptionError(
            f"nexmark.source: {name} is {value!r}; it is a length of time above 0, such as '10 seconds', in "
            f"{', '.join(_UNITS[:-1])} or {_UNITS[-1]}, and at most {_LONGEST_DAYS:,} days."
        )
    return found // _MICROSECOND


def time(name: str, value: object) -> int:
    """Microseconds since 1970 of a time as ISO 8601 or a ``datetime``, in UTC if it says no zone.

    Raises ``OptionError`` for what is no time, or is not between the years 1900 and 2999.
    """
    found: datetime | None = value if isinstance(value, datetime) else None
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if found is None or not 1900 <= found.year <= 2999:
        raise OptionError(
            f"nexmark.source: {name} is {value!r}; it is a time such as '2015-07-15T00:00:00Z', between 1900 and 2999."
        )
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _START) // _MICROSECOND


def whole(name: str, value: object, least: int, most: int) -> int:
    """The value. Raises ``OptionError`` when it is not a whole number between ``least`` and ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError(f"nexmark.source: {name} is {value!r}; it is a whole number from {least} to {most}.")
    return value


def share(name: str, value: object) -> float:
    """The value. Raises ``OptionError`` when it is not a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise OptionError(f"nexmark.source: {name} is {value!r}; it is a share, a number from 0 to 1.")
    return float(value)
