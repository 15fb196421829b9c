"""Decomposition of an aggregate expression into mergeable aggregates and a remainder computed from them.

``sum(delay) / count(*)`` has two aggregates and the remainder ``_part_0 / _part_1``. This module does not use Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochal.aggregates.built_in import BUILT_IN, DISTINCT, FILTERED_BY_FIRST, REFUSED, built_in
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.declarations.expressions import Call, Expression, column, rebuilt, sql
from epochal.declarations.names import listed
from epochal.errors import PipelineError

_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[^\W\d]\w*|\s+|.", re.DOTALL)
_FILTER = re.compile(r"\s*FILTER\s*\(\s*WHERE\b", re.IGNORECASE)
_OVER = re.compile(r"\s*OVER\b", re.IGNORECASE)
_DISTINCT = re.compile(r"\s*DISTINCT\b", re.IGNORECASE)


def part_name(position: int) -> str:
    """Column that replaces aggregate ``position`` in the remainder."""
    return f"_part_{position}"


@dataclass(frozen=True, eq=False)
class Decomposed:
    """A decomposed expression. ``remainder`` computes the value from the columns ``part_name(first)``, .. of
    ``aggregates``."""

    aggregates: tuple[MergeableAggregate, ...]
    remainder: Expression
    calls: tuple[Expression, ...] = ()
    """The author's call of Spark's function, by aggregate; empty for an author's own aggregate."""


def decompose(what: str, expression: Expression | MergeableAggregate, first: int = 0) -> Decomposed:
    """Decompose ``expression``, with aggregates numbered from ``first``. ``what`` names operator and column.

    Raises ``PipelineError`` with the supported aggregates.
    """
    if isinstance(expression, MergeableAggregate):
        return Decomposed((expression,), column(part_name(first)))
    parts = _Parts(what, first)
    remainder = rebuilt(expression, parts.replacement)
    if not parts.found:
        raise PipelineError(f"{what}: {expression} is not an aggregate that can be merged. {_SUPPORTED}")
    return Decomposed(tuple(parts.found), remainder, tuple(parts.calls))


_SUPPORTED = (
    f"Use one of {listed(sorted(filter(str.islower, BUILT_IN)))}, an expression of these, or a MergeableAggregate of "
    "your own; anything else can be kept by process()."
)


class _Parts:
    """Collects the aggregates of an expression."""

    def __init__(self, what: str, first: int) -> None:
        self.what = what
        self.first = first
        self.found: list[MergeableAggregate] = []
        self.calls: list[Expression] = []

    def replacement(self, expression: Expression) -> Expression | None:
        call = expression.call
        if call.target is not None:
            if call.name == "over":
                raise PipelineError(f"{self.what}: a window function (over) cannot be merged. {_SUPPORTED}")
            return None
        if call.name == "expr" and len(call.arguments) == 1 and isinstance(call.arguments[0], str):
            return self._of_text(call.arguments[0])
        if call.name in REFUSED:
            raise self._refused(call.name)
        if call.name in BUILT_IN:
            return self._add(call.name, call.arguments, call.named)
        return None

    def _of_text(self, text: str) -> Expression:
        """SQL text with each aggregate's call replaced by its column."""
        tokens = _TOKEN.findall(text)
        written, position = "", 0
        while position < len(tokens):
            name = tokens[position].lower()
            opening = _skip_space(tokens, position + 1)
            called = opening < len(tokens) and tokens[opening] == "("
            if not called or (name not in BUILT_IN and name not in REFUSED):
                written += tokens[position]
                position += 1
                continue
            if name in REFUSED:
                raise self._refused(name)
            closing = self._closing(tokens, opening, text)
            arguments = "".join(tokens[opening + 1 : closing])
            rest = "".join(tokens[closing + 1 :])
            position = closing + 1
            condition = None
            if _OVER.match(rest):
                raise PipelineError(f"{self.what}: a window function (OVER) cannot be merged. {_SUPPORTED}")
            if _FILTER.match(rest):
                inside = _skip_space(tokens, position)
                bracket = _skip_space(tokens, inside + 1)
                end = self._closing(tokens, bracket, text)
                condition = "".join(tokens[bracket + 1 : end]).lstrip()[len("where") :]
                position = end + 1
            written += f"`{self._add_text(name, arguments, condition)}`"
        return sql(written)

    def _add_text(self, name: str, text: str, condition: str | None) -> str:
        if _DISTINCT.match(text):
            if name not in DISTINCT:
                raise PipelineError(
                    f"{self.what}: {name}(DISTINCT ..) cannot be merged: compute it from sum(DISTINCT v) and "
                    "count(DISTINCT v), or from collect_set(v)."
                )
            return self._add_text(DISTINCT[name], _DISTINCT.sub("", text, count=1), condition)
        arguments: list[Any] = [part.strip() for part in _split(text)]
        if condition is not None:
            # Aggregates skip nulls, so that a null argument filters a row out.
            which = 0 if name in FILTERED_BY_FIRST else -1
            value = "1" if arguments[which] == "*" else arguments[which]
            arguments[which] = f"CASE WHEN {condition} THEN {value} END"
        self._add(name, [argument if argument == "*" else sql(argument) for argument in arguments if argument])
        return part_name(self.first + len(self.found) - 1)

    def _add(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> Expression:
        try:
            self.found.append(built_in(name, arguments, dict(named or {})))
        except PipelineError as error:
            raise PipelineError(f"{self.what}: {error.message}") from None
        self.calls.append(Expression(Call(name, tuple(arguments), dict(named or {}))))
        return column(part_name(self.first + len(self.found) - 1))

    def _refused(self, name: str) -> PipelineError:
        return PipelineError(f"{self.what}: {name} cannot be merged: it {REFUSED[name]}.")

    def _closing(self, tokens: list[str], opening: int, text: str) -> int:
        depth = 0
        for position in range(opening, len(tokens)):
            depth += {"(": 1, ")": -1}.get(tokens[position], 0)
            if depth == 0:
                return position
        raise PipelineError(f"{self.what}: a closing bracket is missing in {text!r}.")


def _skip_space(tokens: list[str], position: int) -> int:
    while position < len(tokens) and tokens[position].isspace():
        position += 1
    return position


def _split(text: str) -> list[str]:
    """Parts between commas outside brackets and quotation marks."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token, 0)
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts
