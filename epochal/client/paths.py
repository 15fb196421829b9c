"""Paths below ``/v1``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from epochal.errors import InvalidKey


def path(*segments: str | int) -> str:
    """``/v1`` and the segments, each percent-encoded."""
    return "/v1/" + "/".join(_segment(str(segment)) for segment in segments)


def _segment(text: str) -> str:
    """``.`` and ``..`` would lead elsewhere: clients and proxies resolve them."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def survives_in_path(key: str) -> bool:
    """Whether a key, as :func:`key_segment` gives it, reaches the control plane unchanged as a segment of a path.

    Clients and proxies resolve ``.`` and ``..`` (many also as ``%2E``), and may merge or refuse ``/``, ``\\`` and zero.
    """
    return key not in ("", ".", "..") and not any(text in key for text in ("%2F", "%5C", "%00"))


def key_segment(columns: tuple[Any, ...]) -> str:
    """The key columns' values in order, comma-separated, each percent-encoded; ``None`` is ``%00``.

    Raises ``InvalidKey`` for the text of one zero character, which cannot be told from that.
    """
    return ",".join(quote(_text(value), safe="") for value in columns)


def _text(value: Any) -> str:
    if value is None:
        return "\0"
    if value == "\0":
        raise InvalidKey(
            "The text of one zero character stands for null in a path and in a query. Look such a key up with "
            "lookup([..]), whose keys are objects."
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
