"""Text to a syntax tree, by sqlglot's parser for Spark SQL; and the clause that Spark does not have, ``WINDOW '..'``.

The text is bounded before it is parsed, so that no text takes long, or deep recursion, to be refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from epochal.standing.limits import Limits
from epochal.standing.refusals import refused

DIALECT = "spark"


@dataclass(frozen=True)
class Text:
    """An interval of the window clause: its text, and where it stands."""

    text: str
    position: int


@dataclass(frozen=True)
class Parsed:
    select: exp.Select
    size: Text
    slide: Text | None


def position_of(node: exp.Expr) -> int | None:
    """Where an expression begins, counted from 0: the first thing in it that has a place."""
    places = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    return min(places, default=None)


def parsed(text: str, limits: Limits) -> Parsed:
    """Raises ``QueryRefused``."""
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
    """The clause at the end, ``WINDOW '..' [SLIDE '..']``, and where it begins."""
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
        what = f"{highlight!r}, where something else has to stand" if highlight else "that it ends too early"
        at = text.find(highlight, max(0, _offset(text, found) - len(highlight) - 1)) if highlight else start
        raise refused("syntax", what, at=max(at, 0)) from error
    except (RecursionError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # The parser is not ours, and the text is anybody's.
        raise refused("too-deep", at=0) from error
    (statement,) = statements or [None]
    if not isinstance(statement, exp.Select):
        raise refused("not-a-select", at=0)
    return statement


def _offset(text: str, found: dict[str, object]) -> int:
    line, column = int(str(found.get("line") or 1)), int(str(found.get("col") or 1))
    lines = text.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + column
