"""Paths below ``/v1``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from epochal.errors import InvalidKey


def path(*segments: str | int) -> str:
    """``/v1`` and the segments, each percent-encoded."""
    return "/v1/" + "/".join(quote(str(segment), safe="") for segment in segments)


def key_segment(columns: tuple[Any, ...]) -> str:
    """The key columns' values in order, comma-separated, each percent-encoded. Raises ``InvalidKey`` on a null."""
    return ",".join(quote(_text(value), safe="") for value in columns)


def _text(value: Any) -> str:
    if value is None:
        raise InvalidKey("A key column cannot be null; give a value for each key column.")
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
