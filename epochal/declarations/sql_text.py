"""Text of Spark SQL: recorded expressions as SQL, as far as possible, and the tokens of SQL text.

A caller of :func:`sql_text` must let Spark compare the plan of the text with the plan of the expression.
"""

from __future__ import annotations

import re
from typing import Any

from epochal.declarations.expressions import Expression
from epochal.state.column_methods import BINARY, UNARY
from epochal.state.type_names import quoted


def sql_text(expression: Expression) -> str | None:
    """The expression as an item of a select list; ``None`` if it cannot be written as SQL."""
    call = expression.call
    if call.name == "alias" and call.target is not None and len(call.arguments) == 1 and not call.named:
        inner = _operand(call.target)
        return None if inner is None else f"{inner} AS {quoted(str(call.arguments[0]))}"
    return _as_written(expression) or _operand(expression)


def _as_written(expression: Expression) -> str | None:
    """The author's text. It ends with a newline because it can end with a comment."""
    call = expression.call
    if call.target is None and call.name in ("expr", "col", "column") and isinstance(call.arguments[0], str):
        return f"{call.arguments[0]}\n"
    return None


def _operand(expression: Expression) -> str | None:
    call, written = expression.call, _as_written(expression)
    if written is not None:
        return f"({written})"
    if call.named:
        return None
    if call.target is None:
        return _function(call.name, call.arguments)
    target, arguments = _operand(call.target), [_argument(each) for each in call.arguments]
    if target is None or None in arguments:
        return None
    if call.name in UNARY and not arguments:
        return UNARY[call.name].format(target)
    if call.name in BINARY and len(arguments) == 1:
        return f"({target} {BINARY[call.name]} {arguments[0]})"
    if call.name == "cast" and isinstance(call.arguments[0], str):
        return f"CAST({target} AS {call.arguments[0]})"
    return None


def _function(name: str, arguments: tuple[Any, ...]) -> str | None:
    if name == "lit":
        return _literal(arguments[0]) if len(arguments) == 1 else None
    written = [each if isinstance(each, str) else _argument(each) for each in arguments]  # a string names a column
    known = [each for each in written if each is not None]
    return f"{name}({', '.join(known)})" if len(known) == len(arguments) else None


def _argument(value: Any) -> str | None:
    return _operand(value) if isinstance(value, Expression) else _literal(value)


def _literal(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else str(value).upper()
    if isinstance(value, int):
        return f"({value})" if -(2**31) < value < 2**31 else None
    if isinstance(value, str) and not set(value) & {"\\", "'"}:
        return f"'{value}'"
    return None


_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|[^\W\d]\w*|\s+|.", re.DOTALL
)


def tokens_of(text: str) -> list[str]:
    """Names, quoted parts, white space, comments and single characters. Joined, they are the text."""
    return _TOKEN.findall(text)


def next_token(tokens: list[str], position: int) -> int | None:
    """The position of the next token that is not white space or a comment; ``None`` at the end."""
    while position < len(tokens):
        token = tokens[position]
        if not (token.isspace() or token.startswith(("--", "/*"))):
            return position
        position += 1
    return None
