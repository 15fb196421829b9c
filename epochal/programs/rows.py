"""The input and output rows of task elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from epochal.programs.dataflow import Edge


@dataclass(slots=True)
class Arrival:
    """An input row. ``values``: in the order of the fields of the edge, or the arguments of ``method`` for a fan-out;
    of gathered rows, an instance can have failed. ``index``: distinguishes rows of one call; ``instance``: sender."""

    edge: int
    sequence: int
    values: Sequence[Any] | Failed
    index: int = 0
    instance: int = 0
    method: str | None = None

    @property
    def sent(self) -> Sequence[Any]:
        """The values of a row that has not failed."""
        assert not isinstance(self.values, Failed)
        return self.values


@dataclass(slots=True)
class Departure:
    """An output row. ``key``: the key by which it is dispatched, if any."""

    edge: int
    sequence: int
    values: Sequence[Any] | Failed
    index: int = 0
    key: Any = None
    method: str | None = None


@dataclass(frozen=True)
class Failed:
    """The exception of a call."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        return cls(type(error).__name__, str(error))


@dataclass(slots=True)
class Answer:
    """The answer of a call, in the form of rows. If a call has several answers, the first instance counts."""

    sequence: int
    value: Any


class Crossing(NamedTuple):
    """The result of a task element that continues along ``edge``."""

    edge: int
    key: Any
    values: tuple[Any, ...]


Answering = Callable[[int, Any], None]
"""Writes the answer or the failure of a call, given its number."""
Sending = Callable[[int, Any, "Sequence[Any] | Failed"], None]
"""Writes a row of a call, given its number, dispatch key and values."""
Writing = Callable[[int, int, Sequence[Any]], None]
"""Writes a row of a fan-out, given the number of the call, the index of the row, and the arguments of the write."""


class Outlet(Protocol):
    """The output of task elements. The writer for each kind of rows is requested once."""

    def answering(self, edge: Edge) -> Answering:
        """The writer for answers of calls that arrived along ``edge``."""

    def sending(self, edge: Edge) -> Sending:
        """The writer for rows along ``edge``, which is not a fan-out."""

    def writing(self, edge: Edge, method: str, key: int) -> Writing:
        """The writer for rows of a fan-out with ``method``; the argument ``key`` dispatches them."""


class Results:
    """An outlet that collects the rows in a list."""

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
