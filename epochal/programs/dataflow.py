"""The stateful dataflow graph of a program, as a value: task elements, state elements, edges (SDG, section 3.1)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from epochal.programs.declaration import StateElement
from epochal.programs.state import Column
from epochal.programs.value_types import ValueType


class Dispatch(Enum):
    """To which instances of a task element a row goes."""

    KEY = "by key"
    """To the one that holds the key's partition."""
    ANY = "one-to-any"
    """To any one."""
    ALL = "one-to-all"
    """To each."""
    GATHER = "all-to-one"
    """The rows that all instances have of a call go to one, together: a barrier."""


class AccessKind(Enum):
    """How a task element accesses its state element."""

    PARTITIONED = "partitioned"
    LOCAL = "local"
    GLOBAL = "global"

    @property
    def dispatch(self) -> Dispatch:
        return {self.PARTITIONED: Dispatch.KEY, self.LOCAL: Dispatch.ANY}.get(self, Dispatch.ALL)


@dataclass(frozen=True)
class Edge:
    """Rows from a task element to another one; ``source`` ``None``: the calls of an entry.

    ``key``: the expression whose value the rows are dispatched by. ``fields``: the variables that are live there.
    ``fan_out``: a call has any number of rows, each a write to a key of its own.
    """

    number: int
    source: int | None
    target: int
    dispatch: Dispatch
    key: str | None
    fields: tuple[Column, ...]
    fan_out: bool = False


@dataclass(frozen=True)
class Write:
    """A blind write that a fan-out sends: a method of the state class, and the types of its parameters. ``rising``:
    each adds a number that stands in the text and is not negative."""

    method: str
    parameter_types: Mapping[str, ValueType]
    rising: bool = False


@dataclass(frozen=True)
class TaskElement:
    """A part of an entry that accesses one state element at most. ``lines``: those of the author's file.

    ``function`` has the parameters ``self``, the state, and the variables that come in; see
    :mod:`epochal.programs.execution`. A task element that applies the writes of a fan-out has none.
    """

    number: int
    entry: str
    name: str
    element: str | None
    access: AccessKind | None
    lines: tuple[int, ...]
    parameters: tuple[str, ...]
    gathered: tuple[str, ...] = ()
    """Of the parameters, those that are lists: one value from each instance, in their order."""
    writes: Mapping[str, Write] = field(default_factory=dict)
    function: ast.FunctionDef | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        return f"{self.entry}.{self.name}".replace(" ", "_")


@dataclass(frozen=True)
class Entry:
    """An entry: the types of its parameters and of what it answers, and the task element that its calls go to."""

    name: str
    parameter_types: Mapping[str, ValueType]
    answer: ValueType
    target: int


@dataclass(frozen=True)
class Stage:
    """Task elements that run as one operator: all those of a state element; or one that has no state."""

    element: str | None
    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Dataflow:
    """``stages``: in an order in which each call visits them, whatever its entry."""

    name: str
    file: str
    elements: Mapping[str, StateElement]
    entries: Mapping[str, Entry]
    tasks: tuple[TaskElement, ...]
    edges: tuple[Edge, ...]
    stages: tuple[Stage, ...]

    def into(self, task: int) -> tuple[Edge, ...]:
        """The edges that lead to a task element."""
        return tuple(edge for edge in self.edges if edge.target == task)

    def out_of(self, task: int) -> tuple[Edge, ...]:
        """The edges that lead away from it."""
        return tuple(edge for edge in self.edges if edge.source == task)
