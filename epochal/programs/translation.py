"""From a class to its dataflow (SDG, section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from types import ModuleType
from typing import Any

from epochal.errors import PipelineError
from epochal.programs.dataflow import Dataflow, Edge, Entry, Stage, TaskElement
from epochal.programs.declaration import Declaration, declared
from epochal.programs.rule import Place
from epochal.programs.rules import RULES
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


def ordered(tasks: Sequence[TaskElement], edges: Sequence[Edge], file: str) -> tuple[Stage, ...]:
    """The stages in order. Raises ``ProgramRefused`` at the access that visits twice, or that closes a cycle."""
    reachable = _reachable(tasks, edges)
    after: dict[str, set[str]] = {}
    for task in tasks:
        for later in reachable[task.number]:
            _visit(task, tasks[later], after, file)
    return _stages(tasks, edges)


def _visit(task: TaskElement, later: TaskElement, after: dict[str, set[str]], file: str) -> None:
    first, second = task.element, later.element
    if first is None or second is None:
        return
    place = Place(file, _first_access_line(later))
    if first == second:
        raise RULES["second-visit"].refuse(place, f"{later.entry} visits {first} again")
    if _leads(second, first, after):
        what = f"{later.entry} visits {first} before {second}, and another entry {second} before {first}"
        raise RULES["cyclic-order"].refuse(place, what)
    after.setdefault(first, set()).add(second)


def _first_access_line(task: TaskElement) -> int:
    """A task element begins with the statement that its state is for, but for checks of types before it."""
    return task.lines[0] if task.lines else 0


def _leads(first: str, second: str, after: Mapping[str, set[str]]) -> bool:
    pending, seen = [first], {first}
    while pending:
        for each in after.get(pending.pop(), ()):
            if each == second:
                return True
            if each not in seen:
                seen.add(each)
                pending.append(each)
    return False


def _reachable(tasks: Sequence[TaskElement], edges: Sequence[Edge]) -> dict[int, list[int]]:
    next_tasks: dict[int, list[int]] = {}
    for edge in edges:
        if edge.source is not None:
            next_tasks.setdefault(edge.source, []).append(edge.target)
    reachable = {}
    for task in tasks:
        found: list[int] = []
        pending = list(next_tasks.get(task.number, ()))
        while pending:
            number = pending.pop(0)
            if number not in found:
                found.append(number)
                pending += next_tasks.get(number, ())
        reachable[task.number] = found
    return reachable


def _stages(tasks: Sequence[TaskElement], edges: Sequence[Edge]) -> tuple[Stage, ...]:
    def node(task: TaskElement) -> tuple[str, object]:
        return ("task", task.number) if task.element is None else ("state", task.element)

    sorter: TopologicalSorter[tuple[str, object]] = TopologicalSorter()
    for task in tasks:
        sorter.add(node(task))
    for edge in edges:
        if edge.source is not None:
            sorter.add(node(tasks[edge.target]), node(tasks[edge.source]))
    return tuple(
        Stage(
            str(name) if kind == "state" else None, tuple(each.number for each in tasks if node(each) == (kind, name))
        )
        for kind, name in sorter.static_order()
    )
