"""The rows that come to task elements and leave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from epochal.programs.dataflow import Edge


@dataclass(slots=True)
class Arrival:
    """A row that comes along an edge. ``values`` are in the order of the edge's fields, as they stand in rows; those of
    a fan-out are the arguments of ``method``; of what is gathered, an instance may have failed. ``index`` tells rows of
    one call apart; ``instance`` is the sender's."""

    edge: int
    sequence: int
    values: Sequence[Any] | Failed
    index: int = 0
    instance: int = 0
    method: str | None = None

    @property
    def sent(self) -> Sequence[Any]:
        """The values, where it has not failed."""
        assert not isinstance(self.values, Failed)
        return self.values


@dataclass(slots=True)
class Departure:
    """A row that leaves along an edge, as it is when it arrives; ``key`` is what it is dispatched by, where it is by
    key."""

    edge: int
    sequence: int
    values: Sequence[Any] | Failed
    index: int = 0
    key: Any = None
    method: str | None = None


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


Answering = Callable[[int, Any], None]
"""Takes the number of a call, and what it answers as it stands in rows, or that it has failed."""
Sending = Callable[[int, Any, "Sequence[Any] | Failed"], None]
"""Takes the number of a call, what its row is dispatched by, and the row's values."""
Writing = Callable[[int, int, Sequence[Any]], None]
"""Takes the number of a call, which of its rows this is, and the arguments of the write."""


class Outlet(Protocol):
    """Where task elements put what leaves them: what takes the rows of one kind is asked for once."""

    def answering(self, edge: Edge) -> Answering:
        """For answers of calls that have come along ``edge``."""

    def sending(self, edge: Edge) -> Sending:
        """For rows along ``edge``, which is no fan-out."""

    def writing(self, edge: Edge, method: str, key: int) -> Writing:
        """For the writes of a fan-out by ``method``, whose argument ``key`` they are dispatched by."""


class Results:
    """An outlet that keeps them one after the other."""

    def __init__(self) -> None:
        self.all: list[Departure | Answer] = []

    def answering(self, edge: Edge) -> Answering:
        return lambda sequence, value: self.all.append(Answer(sequence, value))

    def sending(self, edge: Edge) -> Sending:
        return lambda sequence, key, values: self.all.append(Departure(edge.number, sequence, values, key=key))

    def writing(self, edge: Edge, method: str, key: int) -> Writing:
        return lambda sequence, index, values: self.all.append(
            Departure(edge.number, sequence, values, index, values[key], method)
        )
