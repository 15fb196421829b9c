"""Texts of drawings: escaped, of limited length, and numbers with units."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from html import escape
from typing import Any


def clean(text: str) -> str:
    """Remove what XML does not allow, and characters that change the direction of the text around them. Other control
    characters become spaces."""
    return "".join(" " if sign in "\t\n\r" else sign for sign in text if sign in "\t\n\r" or _allowed(sign))


def _allowed(sign: str) -> bool:
    return unicodedata.category(sign) not in ("Cc", "Cs") and sign not in _DIRECTIONS and sign not in "\ufffe\uffff"


_DIRECTIONS = "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def clipped(text: str, most: int) -> str:
    """At most ``most`` characters of the cleaned text, with ``…`` for the rest."""
    cleaned = clean(text[: 4 * most + 100])
    return cleaned if len(cleaned) <= most else cleaned[: max(0, most - 1)] + "…"


def escaped(text: str, most: int = 500) -> str:
    """Content of an element or a quoted attribute."""
    return escape(clipped(text, most), quote=True)


def count(number: int, noun: str) -> str:
    """``1 row``, ``2,300 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(number: float) -> str:
    """A count of at most five characters: ``9,999``, ``12.3k``, ``4.56M``."""
    if abs(number) < 10_000:
        return f"{number:,.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        value = number / size
        if abs(value) < 999.5 or unit == "G":
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:,.{digits}f}{unit}"
    raise AssertionError("unreachable")


def rate(per_second: float) -> str:
    """``0.3 rows/s``, ``1,200 rows/s``."""
    return f"{per_second:.1f} rows/s" if 0 < per_second < 9.95 else f"{short(per_second)} rows/s"


def share(part: float) -> str:
    """``41 %``, ``0.3 %``."""
    return f"{part * 100:.1f} %" if 0 < part < 0.0995 else f"{part * 100:.0f} %"


def duration(seconds: float) -> str:
    """``120 ms``, ``2.4 s``, ``95 s``, ``12 min``, ``5 h``, ``3 d``."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def size(bytes: float) -> str:
    """Bytes in binary units: ``812 B``, ``4.2 KiB``, ``31 MiB``."""
    value = float(bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def moment(time: datetime | None) -> str:
    """A time in UTC to the second."""
    return "" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def value(of: Any) -> str:
    """A value of a column as one line."""
    if of is None:
        return "null"
    if isinstance(of, str):
        return of
    if isinstance(of, float):
        return f"{of:.10g}"
    return json.dumps(of, ensure_ascii=False, default=str)
