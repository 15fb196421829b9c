"""Text of others, shown so that it cannot pass for something else.

A path or a message may have characters in it that no one sees but a terminal or an editor obeys: line breaks, with
which a log gets lines that nobody wrote; escape sequences; marks that turn the direction of the text after them.
"""

from __future__ import annotations

import re
from typing import Final

_OBEYED: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
_IN_LINES = re.compile(f"[{_OBEYED}]")
_IN_A_LINE = re.compile(f"[\t\n{_OBEYED}]")


def visible(text: str) -> str:
    """One line: every character that is obeyed, and not shown, as ``\\uXXXX``."""
    return _IN_A_LINE.sub(_escape, text)


def visible_lines(text: str) -> str:
    """As :func:`visible`, of a text that may have several lines and tabs."""
    return _IN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
