"""A bound standing query, as plain data for the log, the file of active queries and tasks; the limits of queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from epochal.declarations.intervals import DAY, SECOND
from epochal.standing_queries.expression import Expression
from epochal.standing_queries.types import average_type, sum_type

COUNTED, SUMMED, AVERAGED, LEAST, GREATEST = "count", "sum", "avg", "min", "max"
REMEMBERED_WINDOWS: Final = 30
"""The number of windows without a row of a group after which its remembered values are deleted."""


@dataclass(frozen=True)
class Group:
    """A column that rows are grouped by."""

    name: str
    expression: Expression


@dataclass(frozen=True)
class Aggregate:
    """``function`` over ``argument``; without an argument, over rows (``count(*)``)."""

    name: str
    function: str
    argument: Expression | None

    @property
    def type(self) -> str:
        """The type of its value."""
        if self.argument is None or self.function == COUNTED:
            return "bigint"
        if self.function == SUMMED:
            return sum_type(self.argument.type)
        return average_type(self.argument.type) if self.function == AVERAGED else self.argument.type


@dataclass(frozen=True)
class Remembered:
    """A column of the result: the value of the aggregate ``of`` in the previous window of the group."""

    name: str
    of: str


@dataclass(frozen=True)
class Query:
    """A bound query. ``where``: conditions that all must hold. ``having``: conditions on results, whose columns are the
    names of aggregates; the operation ``remember`` is an aggregate's value in the previous window of the group.
    ``size``, ``slide``: those of the windows, in microseconds; windows are aligned to the Unix epoch, and ``slide``
    divides ``size``."""

    groups: tuple[Group, ...]
    aggregates: tuple[Aggregate, ...]
    where: tuple[Expression, ...]
    size: int
    slide: int
    having: tuple[Expression, ...] = ()
    remembered: tuple[Remembered, ...] = ()

    @property
    def windows_of_a_row(self) -> int:
        return self.size // self.slide

    @cached_property
    def expressions(self) -> tuple[Expression, ...]:
        arguments = (aggregate.argument for aggregate in self.aggregates)
        return (*self.where, *(group.expression for group in self.groups), *filter(None, arguments))

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the stream that it reads."""
        return frozenset().union(*(expression.columns for expression in self.expressions))

    @cached_property
    def recalled(self) -> tuple[Aggregate, ...]:
        """The aggregates whose previous values it reads."""
        names = {each.of for each in self.remembered}
        names |= {each.value for condition in self.having for each in condition.walk() if each.operation == "remember"}
        return tuple(aggregate for aggregate in self.aggregates if aggregate.name in names)

    @property
    def reach(self) -> int:
        """The maximum time between the ends of two consecutive windows of a group, in microseconds, for which the
        previous values are remembered."""
        return REMEMBERED_WINDOWS * self.slide

    @property
    def cost(self) -> int:
        """The cost of a row or a result: 1 for each distinct operation, 1 for each 10 values of a list, 2 for each
        group column, 4 for each aggregate and each remembered value, and the number of windows of a row."""
        nodes = {each.key: each for expression in (*self.expressions, *self.having) for each in expression.walk()}
        operations = sum(each.operation not in ("column", "literal") for each in nodes.values())
        lists = sum(len(each.value) // 10 for each in nodes.values() if each.operation == "in")
        values = len(self.aggregates) + len(self.remembered)
        return operations + lists + 2 * len(self.groups) + 4 * values + self.windows_of_a_row

    @property
    def json(self) -> dict[str, Any]:
        said = {
            "groups": [[group.name, group.expression.json] for group in self.groups],
            "aggregates": [
                [one.name, one.function, None if one.argument is None else one.argument.json] for one in self.aggregates
            ],
            "where": [condition.json for condition in self.where],
            "size": self.size,
            "slide": self.slide,
        }
        having = {"having": [condition.json for condition in self.having]} if self.having else {}
        remembered = {"remembered": [[each.name, each.of] for each in self.remembered]} if self.remembered else {}
        return {**said, **having, **remembered}

    @classmethod
    def of(cls, json: dict[str, Any]) -> Query:
        """The inverse of ``json``."""
        return cls(
            tuple(Group(name, Expression.of(expression)) for name, expression in json["groups"]),
            tuple(
                Aggregate(name, function, None if argument is None else Expression.of(argument))
                for name, function, argument in json["aggregates"]
            ),
            tuple(map(Expression.of, json["where"])),
            json["size"],
            json["slide"],
            tuple(map(Expression.of, json.get("having", ()))),
            tuple(Remembered(name, of) for name, of in json.get("remembered", ())),
        )


@dataclass(frozen=True)
class Limits:
    """The limits of queries, as listed in docs/reference/standing-queries.md.

    The author sets ``queries``, ``groups``, ``least_window`` and ``greatest_window`` (microseconds); the others are
    fixed. ``groups``: groups of a query in one window. ``depth``: depth of one expression.
    """

    queries: int = 1_000
    groups: int = 10_000
    least_window: int = 10 * SECOND
    greatest_window: int = DAY
    characters: int = 4_000
    tokens: int = 800
    depth: int = 16
    list_values: int = 200
    aggregates: int = 16
    group_columns: int = 4
    windows_of_a_row: int = 60
    cost: int = 250


DEFAULT = Limits()
