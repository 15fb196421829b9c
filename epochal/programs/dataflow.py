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
    """The instances of a task element that get a row."""

    KEY = "by key"
    """The instance of the partition of the key."""
    ANY = "one-to-any"
    """Any one instance."""
    ALL = "one-to-all"
    """All instances."""
    GATHER = "all-to-one"
    """A barrier: the rows of a call from all instances go to one instance together."""


class AccessKind(Enum):
    """Access of a task element to its state element."""

    PARTITIONED = "partitioned"
    LOCAL = "local"
    GLOBAL = "global"

    @property
    def dispatch(self) -> Dispatch:
        return {self.PARTITIONED: Dispatch.KEY, self.LOCAL: Dispatch.ANY}.get(self, Dispatch.ALL)


@dataclass(frozen=True)
class Edge:
    """Rows from one task element to another; ``source`` ``None``: the calls of an entry.

    ``key``: the expression by which rows are dispatched. ``fields``: the live variables. ``fan_out``: a call has any
    number of rows, each a write to one key.
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
    """A blind write of a fan-out: a method of the state class, and the types of its parameters. ``rising``: all calls
    add a constant, non-negative number."""

    method: str
    parameter_types: Mapping[str, ValueType]
    rising: bool = False


@dataclass(frozen=True)
class TaskElement:
    """A part of an entry that accesses at most one state element. ``lines``: the lines in the author's file.

    ``function`` has the parameters ``self``, the state, and the input variables; see
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
    """The parameters that are lists of one value per instance, in the order of the instances."""
    writes: Mapping[str, Write] = field(default_factory=dict)
    function: ast.FunctionDef | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        return f"{self.entry}.{self.name}".replace(" ", "_")


@dataclass(frozen=True)
class Entry:
    """An entry: the types of its parameters and its answer, and its first task element."""

    name: str
    parameter_types: Mapping[str, ValueType]
    answer: ValueType
    target: int


@dataclass(frozen=True)
class Stage:
    """Task elements that run as one operator: all task elements of a state element, or one without state."""

    element: str | None
    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Dataflow:
    """A dataflow. ``stages``: in the order in which calls of all entries visit them."""

    name: str
    file: str
    elements: Mapping[str, StateElement]
    entries: Mapping[str, Entry]
    tasks: tuple[TaskElement, ...]
    edges: tuple[Edge, ...]
    stages: tuple[Stage, ...]

    def into(self, task: int) -> tuple[Edge, ...]:
        """The input edges of a task element."""
        return tuple(edge for edge in self.edges if edge.target == task)

    def out_of(self, task: int) -> tuple[Edge, ...]:
        """The output edges of a task element."""
        return tuple(edge for edge in self.edges if edge.source == task)
