"""Escaping of control characters in foreign text.

A path or a message can contain invisible characters that terminals and editors interpret: line breaks, which forge
lines of a log, escape sequences, and marks that change the direction of text.
"""

from __future__ import annotations

import re
from typing import Final

_OBEYED: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
_IN_LINES = re.compile(f"[{_OBEYED}]")
_IN_A_LINE = re.compile(f"[\t\n{_OBEYED}]")


def visible(text: str) -> str:
    """Escape a text as one line: control characters become ``\\uXXXX``."""
    return _IN_A_LINE.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Like :func:`visible`, for a text with several lines and tabs."""
    return _IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
