"""The columns that an expression reads, as far as they can be determined without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from epochal.declarations.determinism import varying_names
from epochal.declarations.expressions import Expression
from epochal.declarations.sql_text import tokens_of
from epochal.state.type_names import unquoted

_WORDS = frozenset(
    {"and", "or", "not", "is", "null", "in", "like", "rlike", "ilike", "between", "true", "false", "case", "when"}
    | {"then", "else", "end", "escape", "div", "as"}
)
"""Keywords of SQL, which are not columns unless quoted."""
_OPAQUE = frozenset(
    {"epoch_time", "udf", "pandas_udf", "__call__", "over", "call_udf", "call_function", "transform", "outer"}
    | {"identifier"}
)
"""Calls whose input is unknown here, or whose value differs between epochs."""
GENERATORS = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple"}
    | {"variant_explode", "variant_explode_outer"}
)
"""Functions that return several rows for one."""
_PLAIN = re.compile(r"[^\W\d]\w*")


def renamed_column(expression: Expression) -> tuple[str, str] | None:
    """The column that the expression selects, and its alias; ``None`` if it computes a value."""
    match picked_field(expression):
        case [[column], name]:
            return column, name
        case _:
            return None


def picked_field(expression: Expression) -> tuple[tuple[str, ...], str] | None:
    """The path of the column, or of the field of a column, that the expression selects, and its name in the result.

    ``None``: the expression computes a value.
    """
    call = expression.call
    if call.target is not None:
        inner = picked_field(call.target) if call.name == "alias" and len(call.arguments) == 1 else None
        return None if inner is None or not isinstance(call.arguments[0], str) else (inner[0], call.arguments[0])
    if call.name not in ("col", "column", "expr") or len(call.arguments) != 1 or not isinstance(call.arguments[0], str):
        return None
    tokens = list(_significant(call.arguments[0]))
    path = [tokens.pop(0)] if tokens else []
    while len(tokens) > 1 and tokens[0] == ".":
        path.append(tokens[1])
        tokens = tokens[2:]
    if not path or not all(map(_is_name, path)):
        return None
    names = tuple(map(_name, path))
    match tokens:
        case []:
            return names, names[-1]
        case [alias] | [("AS" | "as" | "As" | "aS"), alias] if _is_name(alias):
            return names, _name(alias)
        case _:
            return None


def is_star(expression: Expression) -> bool:
    """Return whether the expression is ``*``."""
    call = expression.call
    return call.target is None and call.name in ("col", "column", "expr") and str(call.arguments[0]).strip() == "*"


def computes_of_all(expression: Expression) -> bool:
    """Return whether a function gets all columns, as in ``struct(*)``: an added column would change the result."""
    call = expression.call
    if call.target is None and call.name in ("col", "column", "expr"):
        return isinstance(call.arguments[0], str) and _has_star_within(list(_significant(call.arguments[0])))
    if call.target is not None and computes_of_all(call.target):
        return True
    return any(
        is_star(value) or computes_of_all(value) if isinstance(value, Expression) else value == "*"
        for value in _arguments(expression)
    )


def columns_read(expression: Expression) -> frozenset[str] | None:
    """Names, in lower case, that can be columns that a deterministic expression reads; ``None``: unknown."""
    if next(varying_names(expression), None) is not None:
        return None
    found: set[str] = set()
    return frozenset(found) if _collect(expression, found) else None


def columns_needed(expressions: Iterable[Expression]) -> frozenset[str] | None:
    """Names, in lower case, that can be columns that the expressions require; ``None``: unknown, or all.

    Like :func:`columns_read`; a star is all columns, except in ``count(*)``."""
    found: set[str] = set()
    for expression in expressions:
        read = None if _reads_all(expression) else columns_read(expression)
        if read is None:
            return None
        found |= read
    return frozenset(found)


def is_found(column: str) -> bool:
    """Return whether :func:`columns_needed` finds all reads of a column of this name."""
    return _PLAIN.fullmatch(column) is not None and column.casefold() not in _WORDS


def multiplies_rows(expression: Expression) -> bool:
    """Return whether the expression can produce several rows for one."""
    call = expression.call
    if call.target is None and call.name.lower() in GENERATORS:
        return True
    if call.target is None and call.name == "expr" and call.arguments and isinstance(call.arguments[0], str):
        return any(token.strip("`").lower() in GENERATORS for token in tokens_of(call.arguments[0]))
    if call.target is not None and multiplies_rows(call.target):
        return True
    return any(isinstance(value, Expression) and multiplies_rows(value) for value in _arguments(expression))


def _collect(expression: Expression, found: set[str]) -> bool:
    """Add the columns that are read to ``found``. Returns false if some are unknown."""
    call = expression.call
    if call.name in _OPAQUE:
        return False
    if call.target is None:
        if call.name in ("col", "column", "expr"):
            return isinstance(call.arguments[0], str) and _collect_text(call.arguments[0], found)
        if call.name == "lit":
            return True
        # A string argument can name a column, or a field of a column.
        texts = [value for value in _arguments(expression) if isinstance(value, str)]
        found.update(map(str.casefold, texts))
        if not all(_collect_text(text, found) for text in texts):
            return False
    elif not _collect(call.target, found):
        return False
    return all(
        _collect(value, found) if isinstance(value, Expression) else not callable(value)
        for value in _arguments(expression)
    )


def _collect_text(text: str, found: set[str]) -> bool:
    tokens = list(_significant(text))
    for before, token, after in zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False):
        if not _is_name(token) or token.lower() in _WORDS:
            continue
        if after == "(":
            if token.strip("`").lower() in _OPAQUE:
                return False
        elif before.lower() != "as" and after[:1] not in (
            "'",
            '"',
        ):  # neither a type nor of a literal: DATE '2020-01-01'
            found.add(_name(token).casefold())
    return True


def _arguments(expression: Expression) -> Iterator[Any]:
    for argument in (*expression.call.arguments, *expression.call.named.values()):
        yield from argument if isinstance(argument, (list, tuple)) else (argument,)


def _has_star_within(tokens: list[str]) -> bool:
    """Return whether a star is an argument, not a multiplication or the fields of a column (``payload.*``)."""
    return any(token == "*" and before in ("(", ",") for before, token in pairwise(tokens))


def _reads_all(expression: Expression) -> bool:
    call = expression.call
    if call.target is None and call.name in ("col", "column", "expr"):
        return not isinstance(call.arguments[0], str) or _stands_for_all(list(_significant(call.arguments[0])))
    arguments = list(_arguments(expression))
    if call.target is None and call.name == "count" and len(arguments) == 1 and isinstance(arguments[0], str):
        return False  # of a column, or of rows
    if call.target is not None and _reads_all(call.target):
        return True
    return any(_reads_all(value) if isinstance(value, Expression) else value == "*" for value in arguments)


def _stands_for_all(tokens: Sequence[str]) -> bool:
    """Return whether a star means all columns: no multiplication, no ``payload.*``, no ``count(*)``."""
    for position, token in enumerate(tokens):
        before = tokens[position - 1] if position else ""
        if token != "*" or before == "." or _is_operand(before):
            continue
        around = [part.lower() for part in tokens[max(0, position - 2) : position + 2]]
        if around != ["count", "(", "*", ")"]:
            return True
    return False


def _is_operand(token: str) -> bool:
    """Return whether the token can end an operand, so that a star after it multiplies."""
    if _is_name(token):
        return token.lower() not in ("distinct", "all", "select")
    return token in (")", "]") or token[:1].isdigit() or token[:1] in ("'", '"')


def _significant(text: str) -> Iterator[str]:
    return (token for token in tokens_of(text) if not (token.isspace() or token.startswith(("--", "/*"))))


def _is_name(token: str) -> bool:
    return token[:1] == "`" or token[:1].isalpha() or token[:1] == "_"


def _name(token: str) -> str:
    return unquoted(token[1:-1]) if token[:1] == "`" else token
