"""How a program's state is distributed, as authors say it: ``Partitioned``, ``Partial``, ``Global``, ``Collection``."""

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
    """How the instances of a state element are related."""

    PARTITIONED = "partitioned"
    """Each holds the elements of its keys."""
    PARTIAL = "partial"
    """Each holds elements of all keys; what is true of all of them is merged by the program."""


@dataclass(frozen=True)
class Distributed:
    """What the annotations below leave at a type. ``by``: the partitioning; ``None``: the usual one of the class."""

    distribution: Distribution
    by: str | None = None


Partitioned = Annotated[S, Distributed(Distribution.PARTITIONED)]
"""``ratings: Partitioned[Matrix]``: split by key; each access names its key."""
PartitionedByColumn = Annotated[S, Distributed(Distribution.PARTITIONED, "column")]
"""``ratings: PartitionedByColumn[Matrix]``."""
Partial = Annotated[S, Distributed(Distribution.PARTIAL)]
"""``counts: Partial[Matrix]``: several instances of the whole; an access goes to any one of them, or to all."""


def Global(state: T) -> T:  # it is an annotation of the access, as in the paper
    """Before an access to partial state: to all instances. What it returns has as many values: see ``Collection``."""
    siblings: tuple[T, ...] = state._siblings if isinstance(state, State) else (state,)
    return state if len(siblings) == 1 else Several(siblings)  # type: ignore[return-value]


def Collection(value: T) -> list[T]:
    """The values that a variable has, one of each instance, in the order of instances."""
    return list(value.values) if isinstance(value, Several) else [value]


class Several:
    """In a plain run with several instances: one value of each. What is done to it is done to each of them."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Several:
            return self._each(lambda value: getattr(value, name)(*arguments, **named))

        return call

    def __bool__(self) -> bool:
        raise TypeError("a plain run with several instances cannot decide by what has several values: use one instance")

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
