"""A standing query once it is understood: plain data, for the log, the file of active queries, and tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from epochal.declarations.intervals import DAY, SECOND
from epochal.standing_queries.expression import Expression
from epochal.standing_queries.types import average_type, sum_type

COUNTED, SUMMED, AVERAGED, LEAST, GREATEST = "count", "sum", "avg", "min", "max"
REMEMBERED_WINDOWS: Final = 30
"""A group of which so many windows of a query had no row is forgotten."""


@dataclass(frozen=True)
class Group:
    """A column that rows are grouped by."""

    name: str
    expression: Expression


@dataclass(frozen=True)
class Aggregate:
    """``function`` over ``argument``; ``None``: over rows (``count(*)``)."""

    name: str
    function: str
    argument: Expression | None

    @property
    def type(self) -> str:
        """Of its value."""
        if self.argument is None or self.function == COUNTED:
            return "bigint"
        if self.function == SUMMED:
            return sum_type(self.argument.type)
        return average_type(self.argument.type) if self.function == AVERAGED else self.argument.type


@dataclass(frozen=True)
class Remembered:
    """A column of the result: what the aggregate ``of`` was in the group's window before."""

    name: str
    of: str


@dataclass(frozen=True)
class Query:
    """``where``: conditions that all must hold. ``having``: conditions on results, whose columns are the names of
    aggregates; operation ``remember`` is an aggregate's value in the group's window before. ``size``, ``slide``: of the
    windows, in microseconds; the grid begins at the Unix epoch, and ``slide`` divides ``size``."""

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
        """Those of the stream that it reads."""
        return frozenset().union(*(expression.columns for expression in self.expressions))

    @cached_property
    def recalled(self) -> tuple[Aggregate, ...]:
        """The aggregates whose values it needs of the window before."""
        names = {each.of for each in self.remembered}
        names |= {each.value for condition in self.having for each in condition.walk() if each.operation == "remember"}
        return tuple(aggregate for aggregate in self.aggregates if aggregate.name in names)

    @property
    def reach(self) -> int:
        """So much later than the window that a group had before, in microseconds, its next one may end for that to be
        remembered."""
        return REMEMBERED_WINDOWS * self.slide

    @property
    def cost(self) -> int:
        """A measure of the work for a row, or a result: 1 for each distinct operation, 1 for each 10 values of a list,
        2 for each group column, 4 for each aggregate and each value that is remembered, and the windows that a row is
        in."""
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
    """The author sets ``queries``, ``groups``, ``least_window`` and ``greatest_window`` (microseconds); the others are
    the language's. ``groups``: of a query in one window. ``depth``: of one expression."""

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
