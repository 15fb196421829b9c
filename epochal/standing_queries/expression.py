"""Typed expressions: a query's SQL after names are resolved and casts are explicit.

Expressions are plain data, which can be stored as JSON, and queries share the evaluation of equal expressions. ``key``
is equal for expressions with the same normal form: operands of symmetric operators are sorted, ``>`` becomes ``<`` with
swapped operands, lists are sorted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

SYMMETRIC: Final = frozenset({"and", "or", "eq", "eq_null_safe"})
TURNED: Final = {"gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class Expression:
    """``operation`` over ``arguments``, with a result of ``type`` (Spark's name, lower case).

    ``value``: for a literal, its value: integers, days of a date and microseconds of a timestamp as int, decimals as
    text; for a column, its name; for other operations, a constant: for ``in`` a tuple of values.
    """

    operation: str
    type: str
    arguments: tuple[Expression, ...] = ()
    value: Any = None

    @cached_property
    def key(self) -> str:
        return json.dumps(self.json, separators=(",", ":"))

    @property
    def json(self) -> list[Any]:
        return [self.operation, self.type, self.value, *(argument.json for argument in self.arguments)]

    @classmethod
    def of(cls, json: list[Any]) -> Expression:
        """The inverse of ``json``."""
        operation, type, value, *arguments = json
        listed = tuple(value) if isinstance(value, list) else value
        return cls(operation, type, tuple(map(cls.of, arguments)), listed)

    def walk(self) -> Iterator[Expression]:
        yield self
        for argument in self.arguments:
            yield from argument.walk()

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(each.value for each in self.walk() if each.operation == "column")


def normal(operation: str, type: str, *arguments: Expression, value: Any = None) -> Expression:
    """An expression in its normal form."""
    if operation in TURNED:
        operation, arguments = TURNED[operation], arguments[::-1]
    if operation in ("and", "or"):
        flat = [part for argument in arguments for part in _parts(operation, argument)]
        arguments = tuple({part.key: part for part in flat}.values())
        if len(arguments) == 1:
            return arguments[0]
    if operation in SYMMETRIC:
        arguments = tuple(sorted(arguments, key=lambda argument: argument.key))
    return Expression(operation, type, arguments, value)


def conjuncts(condition: Expression | None) -> tuple[Expression, ...]:
    """The conjuncts of a condition."""
    return () if condition is None else _parts("and", condition)


def _parts(operation: str, expression: Expression) -> tuple[Expression, ...]:
    return expression.arguments if expression.operation == operation else (expression,)
