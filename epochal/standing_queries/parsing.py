"""Parses a query with sqlglot's parser for Spark SQL, and the additional clause ``WINDOW '..'``; values of literals.

The length of the text is limited before it is parsed, which limits the time and the recursion depth of parsing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from epochal.standing_queries.expression import Expression, normal
from epochal.standing_queries.query import Limits
from epochal.standing_queries.refusals import refused
from epochal.standing_queries.types import FLOATS
from epochal.state.type_names import decimal_of

DIALECT = "spark"
_INT: Final = 2**31
_BIGINT: Final = 2**63
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)(Z|[+-]\d\d:\d\d)?)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Text:
    """An interval of the window clause: its text and position."""

    text: str
    position: int


@dataclass(frozen=True)
class Parsed:
    select: exp.Select
    size: Text
    slide: Text | None


def position_of(node: exp.Expr) -> int | None:
    """The start of an expression, from 0: the first position of its parts."""
    places = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    return min(places, default=None)


def parsed(text: str, limits: Limits) -> Parsed:
    """The syntax tree and the window of a query. Raises ``QueryRefused``."""
    if len(text) > limits.characters:
        raise refused("too-long", f"{limits.characters:,} characters", at=limits.characters)
    if "\0" in text:
        raise refused("syntax", "a character that SQL does not have", at=text.index("\0"))
    try:
        tokens = list(sqlglot.tokenize(text, dialect=DIALECT))
    except TokenError as error:
        raise refused("syntax", "a quotation mark, or a comment, that is not closed", at=len(text)) from error
    if len(tokens) > limits.tokens:
        raise refused("too-long", f"{limits.tokens:,} words and signs", at=tokens[limits.tokens].start)
    _check_statement(tokens)
    size, slide, end = _window(text, tokens)
    return Parsed(_select(text[:end]), size, slide)


def _check_statement(tokens: list[Token]) -> None:
    if not tokens or tokens[0].token_type is not TokenType.SELECT:
        raise refused("not-a-select", at=tokens[0].start if tokens else 0)
    for token in tokens[1:]:
        if token.token_type is TokenType.SEMICOLON and token is not tokens[-1]:
            raise refused("one-statement", at=token.start)
        if token.token_type is TokenType.SELECT:
            raise refused("subquery", at=token.start)
    for token in tokens:
        if token.token_type is TokenType.HINT:
            raise refused("clause", "a hint", at=token.start)


def _window(text: str, tokens: list[Token]) -> tuple[Text, Text | None, int]:
    """The clause at the end, ``WINDOW '..' [SLIDE '..']``, and its position."""
    left = tokens[:-1] if tokens[-1].token_type is TokenType.SEMICOLON else tokens
    slide: Text | None = None
    if len(left) > 2 and left[-2].text.upper() == "SLIDE" and left[-1].token_type is TokenType.STRING:
        slide, left = Text(left[-1].text, left[-1].start), left[:-2]
    if (
        len(left) < 2
        or left[-1].token_type is not TokenType.STRING
        or left[-2].token_type is not TokenType.WINDOW
        or text[left[-2].start] in "`\"'"
    ):
        raise refused("no-window", at=len(text))
    return Text(left[-1].text, left[-1].start), slide, left[-2].start


def _select(text: str) -> exp.Select:
    try:
        statements = sqlglot.parse(text, dialect=DIALECT)
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        start = len(str(found.get("start_context") or ""))
        highlight = str(found.get("highlight") or "").strip()
        what = f"an unexpected {highlight!r}" if highlight else "an unexpected end"
        at = text.find(highlight, max(0, _offset(text, found) - len(highlight) - 1)) if highlight else start
        raise refused("syntax", what, at=max(at, 0)) from error
    except (RecursionError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # The parser may raise any of these errors for an arbitrary text.
        raise refused("too-deep", at=0) from error
    (statement,) = statements or [None]
    if not isinstance(statement, exp.Select):
        raise refused("not-a-select", at=0)
    return statement


def _offset(text: str, found: dict[str, object]) -> int:
    line, column = int(str(found.get("line") or 1)), int(str(found.get("col") or 1))
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + column


def cast(value: Expression, type: str) -> Expression:
    """``value`` cast to ``type``, which can represent it; a literal becomes a literal of that type."""
    if value.type == type:
        return value
    if value.operation != "literal" or value.value is None:
        return Expression("literal", type) if value.operation == "literal" else normal("cast", type, value)
    if type in FLOATS:
        return Expression("literal", type, value=float(value.value))
    if decimal_of(type) is not None:
        return Expression("literal", type, value=str(value.value))
    if (value.type, type) == ("date", "timestamp"):
        return Expression("literal", type, value=value.value * 86_400_000_000)
    if (value.type, type) == ("timestamp", "date"):
        return Expression("literal", type, value=value.value // 86_400_000_000)
    return Expression("literal", type, value=value.value)


def number(node: exp.Expr, text: str) -> Expression:
    """A numeric literal with the type that Spark assigns. Raises ``QueryRefused``."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise refused("literal", text, at=position_of(node)) from None
    if "e" in text.lower():
        return Expression("literal", "double", value=float(text))
    exponent = number.as_tuple().exponent
    if "." not in text:
        whole = int(text)
        if not -_BIGINT <= whole < _BIGINT:
            raise refused("literal", text, at=position_of(node))
        return Expression("literal", "int" if -_INT <= whole < _INT else "bigint", value=whole)
    scale = -int(exponent)
    precision = max(len(number.as_tuple().digits), scale)
    if precision > 18:
        raise refused("literal", text, at=position_of(node))
    return Expression("literal", f"decimal({precision},{scale})", value=str(number))


def fits(value: int, type: str) -> bool:
    bits: int = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[type]
    least: int = -(2**bits)
    return least <= value < -least


def time(text: str, type: str) -> Expression:
    """A date or a timestamp literal, in UTC unless it has a time zone. Raises ``ValueError``."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None or (type == "date" and found[2] is not None):
        raise ValueError(text)
    day, clock, zone = found[1], found[2] or "00:00", found[3] or "+00:00"
    if type == "date":
        return Expression("literal", "date", value=(date.fromisoformat(day) - date(1970, 1, 1)).days)
    at = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone == 'Z' else zone}")
    return Expression("literal", "timestamp", value=(at - _EPOCH) // timedelta(microseconds=1))
