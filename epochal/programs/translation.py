"""From a class to its dataflow (SDG, section 4.2)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from epochal.errors import PipelineError
from epochal.programs.dataflow import Dataflow, Entry
from epochal.programs.declaration import declared
from epochal.programs.ordering import ordered
from epochal.programs.splitting import Splitter
from epochal.programs.syntax import check_syntax


def translate(program: type) -> Dataflow:
    """The dataflow of a class with ``@program``. Raises ``ProgramRefused`` with the line, why, and the fix."""
    if not getattr(program, "__program__", False):
        raise PipelineError(f"{program.__name__} is no program: decorate the class with @program.")
    declaration = declared(program)
    check_syntax(declaration)
    splitter = Splitter(declaration)
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


def programs_in(module: ModuleType) -> list[type[Any]]:
    """The classes with ``@program`` that a module defines, in the order of the text."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, type) and "__program__" in vars(each) and each.__module__ == module.__name__
    ]
