"""Text of Spark SQL as tokens: just enough to find the functions that it calls."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|[^\W\d]\w*|\s+|.", re.DOTALL
)


def tokens_of(text: str) -> list[str]:
    """Names, quoted parts, space, comments and single signs; together they are the text again."""
    return _TOKEN.findall(text)


def next_token(tokens: list[str], position: int) -> int | None:
    """The first place from ``position`` on that is no space and no comment; ``None`` at the end."""
    while position < len(tokens):
        token = tokens[position]
        if not (token.isspace() or token.startswith(("--", "/*"))):
            return position
        position += 1
    return None
