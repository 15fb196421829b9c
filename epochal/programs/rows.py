"""The rows that come to task elements and leave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(slots=True)
class Arrival:
    """A row that comes along an edge. ``values`` are in the order of the edge's fields, as they stand in rows; those of
    a fan-out are the method's name and its arguments; of what is gathered, an instance may have failed. ``index`` tells
    rows of one call apart; ``instance`` is the sender's."""

    edge: int
    sequence: int
    values: tuple[Any, ...] | Failed
    index: int = 0
    instance: int = 0

    @property
    def sent(self) -> tuple[Any, ...]:
        """The values, where it has not failed."""
        assert not isinstance(self.values, Failed)
        return self.values


@dataclass(slots=True)
class Departure:
    """A row that leaves along an edge; ``key`` is what it is dispatched by, where it is by key."""

    edge: int
    sequence: int
    values: tuple[Any, ...] | Failed
    index: int = 0
    key: Any = None


@dataclass(frozen=True)
class Failed:
    """The exception that a call has raised."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        return cls(type(error).__name__, str(error))


@dataclass(slots=True)
class Answer:
    """What a call answers, as it stands in rows. Of several that one call has, that of the first instance counts."""

    sequence: int
    value: Any


class Crossing(NamedTuple):
    """What a task element gives that goes on along ``edge``."""

    edge: int
    key: Any
    values: tuple[Any, ...]


class Answered(NamedTuple):
    """What a task element gives that answers its call."""

    value: Any
