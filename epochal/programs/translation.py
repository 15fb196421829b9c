"""From a class to its dataflow (SDG, section 4.2)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from epochal.errors import PipelineError
from epochal.programs.dataflow import Dataflow, Edge, Entry, TaskElement
from epochal.programs.declaration import Declaration, declared
from epochal.programs.ordering import ordered
from epochal.programs.splitting import EntrySplitter
from epochal.programs.syntax import check_syntax


def translate(program: type) -> Dataflow:
    """The dataflow of a class with ``@program``. Raises ``ProgramRefused`` with the line, why, and the fix."""
    if not getattr(program, "__program__", False):
        raise PipelineError(f"{program.__name__} is no program: decorate the class with @program.")
    declaration = declared(program)
    check_syntax(declaration)
    splitter = _Splitter(declaration)
    entries = {
        name: Entry(name, entry.parameter_types, entry.answer, splitter.split(name))
        for name, entry in declaration.entries.items()
    }
    stages = ordered(splitter.tasks, splitter.edges, declaration.file)
    return Dataflow(
        program.__name__,
        declaration.file,
        declaration.elements,
        entries,
        tuple(splitter.tasks),
        tuple(splitter.edges),
        stages,
    )


class _Splitter:
    """Splits the entries of a program, one after the other; task elements and edges are numbered over all of them."""

    def __init__(self, declaration: Declaration) -> None:
        self.tasks: list[TaskElement] = []
        self.edges: list[Edge] = []
        self._declaration = declaration

    def split(self, name: str) -> int:
        """Split an entry; returns its first task element. Raises ``ProgramRefused``."""
        entry = EntrySplitter(self._declaration, name, len(self.tasks), self.edges)
        first = entry.run()
        self.tasks += [entry.finished(task) for task in entry.tasks]
        return first.number


def programs_in(module: ModuleType) -> list[type[Any]]:
    """The classes with ``@program`` that a module defines, in the order of the text."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and "__program__" in vars(each) and each.__module__ == module.__name__
    ]
