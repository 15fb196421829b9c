"""What a standing query may ask for at most. docs/standing-queries.md tells each number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from epochal.declarations.intervals import DAY, SECOND

REMEMBERED_WINDOWS: Final = 30
"""A group of which so many windows of a query had no row is forgotten."""


@dataclass(frozen=True)
class Limits:
    """The author sets ``queries``, ``groups``, ``least_window`` and ``greatest_window`` (microseconds); the others are
    the language's. ``groups``: of a query in one window. ``depth``: of one expression."""

    queries: int = 1_000
    groups: int = 10_000
    least_window: int = 10 * SECOND
    greatest_window: int = DAY
    characters: int = 4_000
    tokens: int = 800
    depth: int = 16
    list_values: int = 200
    aggregates: int = 16
    group_columns: int = 4
    windows_of_a_row: int = 60
    cost: int = 250


DEFAULT = Limits()
