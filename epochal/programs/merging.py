"""The relation of the instances of partial state, derived from the writes of a program, for merging them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from epochal.programs.dataflow import AccessKind, Dataflow
from epochal.programs.declaration import StateElement
from epochal.programs.task_code import STATE
from epochal.programs.value_types import FLOAT, INT

_ADDING = frozenset({"add", "add_vector"})


class Instances(Enum):
    """The relation of the instances of partial state after any calls."""

    PARTS = "parts of a sum"
    """All writes add to one of the instances: their sum is the state."""
    ALIKE = "alike"
    """All writes go to all instances."""


def instances_of(dataflow: Dataflow, element: StateElement) -> Instances | None:
    """The relation of the instances; ``None`` if it is unknown."""
    local = {method for kind, method in _writes(dataflow, element) if kind is AccessKind.LOCAL}
    everywhere = {method for kind, method in _writes(dataflow, element) if kind is AccessKind.GLOBAL}
    if not local:
        return Instances.ALIKE
    if local <= _ADDING and everywhere <= {*_ADDING, "clear"} and element.model.value[0].type in (INT, FLOAT):
        return Instances.PARTS
    return None


def _writes(dataflow: Dataflow, element: StateElement) -> Iterator[tuple[AccessKind | None, str]]:
    for task in dataflow.tasks:
        if task.element != element.name or task.function is None:
            continue
        for node in ast.walk(task.function):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name == STATE:
                    access = element.kind.access(method)
                    if access is not None and access.writes:
                        yield task.access, method
