"""The declared distribution of the state of a program: ``Partitioned``, ``Partial``, ``Global``, ``Collection``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar

from epochal.programs.state import State

S = TypeVar("S")
T = TypeVar("T")


class Distribution(Enum):
    """The relation of the instances of a state element."""

    PARTITIONED = "partitioned"
    """Each instance has the elements of its keys."""
    PARTIAL = "partial"
    """Each instance can have elements of all keys; the program merges their values."""


@dataclass(frozen=True)
class Distributed:
    """The metadata of the annotations below. ``by``: the partitioning; ``None``: the default of the class."""

    distribution: Distribution
    by: str | None = None


Partitioned = Annotated[S, Distributed(Distribution.PARTITIONED)]
"""``ratings: Partitioned[Matrix]``: partitioned by key; each access has a key."""
PartitionedByColumn = Annotated[S, Distributed(Distribution.PARTITIONED, "column")]
"""``ratings: PartitionedByColumn[Matrix]``: partitioned by column."""
Partial = Annotated[S, Distributed(Distribution.PARTIAL)]
"""``counts: Partial[Matrix]``: several instances of the whole; an access goes to one instance, or to all."""


def Global(state: T) -> T:  # an annotation of the access, as in the paper
    """Access all instances of partial state. The result has one value per instance: see ``Collection``."""
    siblings: tuple[T, ...] = state._siblings if isinstance(state, State) else (state,)
    return state if len(siblings) == 1 else Several(siblings)  # type: ignore[return-value]


def Collection(value: T) -> list[T]:
    """The values of a variable, one per instance, in the order of the instances."""
    return list(value.values) if isinstance(value, Several) else [value]


class Several:
    """The values of several instances in a plain run. Operations apply to each of them."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Several:
            return self._each(lambda value: getattr(value, name)(*arguments, **named))

        return call

    def __bool__(self) -> bool:
        raise TypeError(
            "a plain run with several instances cannot branch on a variable with several values: use one instance"
        )

    def _each(self, function: Callable[[Any], Any]) -> Several:
        return Several(tuple(map(function, self.values)))

    def __add__(self, other: Any) -> Several:
        return self._each(lambda value: value + other)

    def __sub__(self, other: Any) -> Several:
        return self._each(lambda value: value - other)

    def __mul__(self, other: Any) -> Several:
        return self._each(lambda value: operator.mul(value, other))

    def conform(self, conform: Callable[[Any], Any]) -> Several:
        return self._each(conform)
