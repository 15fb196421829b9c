"""An entry is split into task elements, by rules 1 to 5 of SDG 4.2.

A task element ends where the next statement accesses another state element, the same by another key, or in another way.
The statements from there on are another task element, whatever way leads to them: a branch that has to go on elsewhere
takes what follows the ``if`` with it. What is still needed (live variables) goes along the edge.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from epochal.programs.accesses import Accesses, Site, Where, is_simple
from epochal.programs.conforming import Conforming
from epochal.programs.dataflow import AccessKind, Dispatch, Edge, TaskElement, Write
from epochal.programs.declaration import Declaration
from epochal.programs.flow import (
    PARAMETER,
    UNASSIGNED,
    Definitions,
    after_statement,
    all_assigned,
    live_before,
    used,
)
from epochal.programs.rules import RULES, ProgramRefused
from epochal.programs.source import place_of
from epochal.programs.state import Column
from epochal.programs.statements import (
    Gathered,
    first_assignment,
    first_real,
    first_use,
    lines_of,
    loaded,
    returns,
    single_use,
    writes_of,
)
from epochal.programs.task_code import crossing, fanning, task_function

MAX_TASKS = 64
"""Of one program."""


@dataclass(eq=False)
class _Task:
    """A task element as it is being made."""

    number: int
    where: Where | None
    parameters: tuple[str, ...]
    gathers: frozenset[str] | None = None
    code: list[ast.stmt] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    updates: bool = False
    writes: dict[str, Write] = field(default_factory=dict)


class EntrySplitter:
    """Splits one entry. Task elements are numbered from ``first`` on; ``edges`` are those of the whole program."""

    def __init__(self, declaration: Declaration, name: str, first: int, edges: list[Edge]) -> None:
        self.tasks: list[_Task] = []
        self._declaration = declaration
        self._name = name
        self._entry: Conforming = declaration.entries[name]
        self._first = first
        self._edges = edges
        self._accesses = Accesses(declaration.elements, self._entry.function.__globals__, self._entry.file)
        self._points: dict[tuple[object, ...], _Task] = {}
        self._kept: list[Sequence[ast.stmt]] = []
        self._locals = [
            *self._entry.parameter_types,
            *sorted(all_assigned(self._entry.body) - {*self._entry.parameter_types}),
        ]

    # Rule 1: a task element for the entry.

    def run(self) -> _Task:
        body = tuple(self._entry.body)
        parameters = tuple(self._entry.parameter_types)
        before = dict.fromkeys(parameters, frozenset({PARAMETER}))
        site = self._first_access(body, before)
        task = self._new_task(None if site is None else site.where, parameters)
        fields = tuple(Column(each, type) for each, type in self._entry.parameter_types.items())
        dispatch = Dispatch.ANY if site is None else site.where.kind.dispatch
        self._edge(None, task, dispatch, None if site is None else site.key, fields)
        task.code = self._split(task, body, before, frozenset())
        return task

    def _first_access(self, body: Sequence[ast.stmt], before: Definitions) -> Site | None:
        """The access that every call makes first, if its place is known when the call comes."""
        found = self._first_accesses(body, before)
        if len({site.where for site in found}) != 1:
            return None
        site = found[0]
        if site.where.kind is AccessKind.GLOBAL and site not in self._accesses.of(first_real(body), before):
            return None
        known = self._accesses.at(site, before) == site.where and is_simple(site.key)
        return site if known else None

    def _first_accesses(self, body: Sequence[ast.stmt], before: Definitions) -> list[Site]:
        reached: Definitions | None = before
        for position, statement in enumerate(body):
            if reached is None:
                return []
            sites = self._accesses.of(statement, reached)
            if sites and isinstance(statement, ast.If) and not self._accesses.of_expression(statement.test, reached):
                rest = tuple(body[position + 1 :])
                branches = [(*statement.body, *rest), (*statement.orelse, *rest)]
                return [site for branch in branches for site in self._first_accesses(branch, reached)]
            if sites:
                return sites
            reached = after_statement(statement, reached)
        return []

    # Rules 2 to 5: where it ends, and what comes next.

    def _split(
        self, task: _Task, body: Sequence[ast.stmt], before: Definitions, several: frozenset[str]
    ) -> list[ast.stmt]:
        """The code of a task element from ``body`` on. ``several``: variables with a value for each instance."""
        code: list[ast.stmt] = []
        reached: Definitions | None = before
        for position, statement in enumerate(body):
            if reached is None:
                break
            rest = tuple(body[position:])
            sites = self._accesses.of(statement, reached)
            everywhere = task.where is not None and task.where.kind is AccessKind.GLOBAL
            here = bool(sites) and all(site.where == task.where for site in sites)
            if everywhere and self._leaves(statement, sites, task):
                return [*code, self._gather(task, rest, reached, several)]
            if isinstance(statement, ast.If) and sites and not self._stays(statement, here, everywhere):
                return [*code, self._if(task, statement, rest, reached, several)]
            if sites and not here:
                return [*code, *self._elsewhere(task, statement, sites, rest, reached)]
            if everywhere and returns(statement):
                raise self._refused("multi-valued", statement, "what it returns differs between instances")
            self._check_collections(statement)
            task.updates = task.updates or any(site.access.writes for site in sites)
            task.lines |= lines_of(statement)
            code.append(statement)
            if everywhere and (sites or used(statement) & several or loaded(statement) & several):
                several |= all_assigned([statement])
            reached = after_statement(statement, reached)
        return code

    def _leaves(self, statement: ast.stmt, sites: list[Site], task: _Task) -> bool:
        """Whether the instances of a global access have to come together before the statement."""
        if self._accesses.collected(statement) and not isinstance(statement, ast.If):
            return True
        if any(site.where == task.where for site in sites):
            return False
        return bool(sites) or returns(statement) or bool(self._accesses.collected(statement))

    def _stays(self, statement: ast.If, here: bool, everywhere: bool) -> bool:
        """Whether an ``if`` is run as a whole in the task element that is in its place."""
        return here and not (everywhere and returns(statement))

    def _if(
        self,
        task: _Task,
        statement: ast.If,
        rest: Sequence[ast.stmt],
        before: Definitions,
        several: frozenset[str],
    ) -> ast.stmt:
        """An ``if`` whose branches go on in different places, each with what follows it."""
        tests = self._accesses.of_expression(statement.test, before)
        if any(site.where != task.where for site in tests):
            return self._cross(task, self._only(tests, statement, before), rest, before)
        if used(statement.test) & several or (tests and task.where and task.where.kind is AccessKind.GLOBAL):
            raise self._refused("multi-valued", statement, "which way it goes may differ between instances")
        self._check_collections(statement.test)
        task.lines |= lines_of(statement.test)
        task.updates = task.updates or any(site.access.writes for site in tests)
        after = rest[1:]
        branches = [self._split(task, (*each, *after), before, several) for each in (statement.body, statement.orelse)]
        first, second = (branch or [ast.copy_location(ast.Pass(), statement)] for branch in branches)
        return ast.copy_location(ast.If(statement.test, first, second), statement)

    def _elsewhere(
        self, task: _Task, statement: ast.stmt, sites: list[Site], rest: Sequence[ast.stmt], before: Definitions
    ) -> list[ast.stmt]:
        """The statement accesses state that is in another place."""
        if not isinstance(statement, ast.For):
            return [self._cross(task, self._only(sites, statement, before), rest, before)]
        if len({site.where for site in sites}) == 1 and self._accesses.at(sites[0], before) == sites[0].where:
            return [self._cross(task, sites[0], rest, before)]
        heads = self._accesses.of_expression(statement.iter, before)
        if any(site.where != task.where for site in heads):
            return [self._cross(task, self._only(heads, statement, before), rest, before)]
        return self._fan_out(task, statement, sites[len(heads) :], rest[1:], before)

    def _only(self, sites: list[Site], statement: ast.stmt, before: Definitions) -> Site:
        """The one place that the statement accesses, which is known before it."""
        places = {site.where for site in sites}
        if len(places) > 1:
            names = " and ".join(sorted({site.where.element for site in sites}))
            raise self._refused("two-accesses", statement, f"it accesses {names}")
        return sites[0]

    def _cross(self, task: _Task, site: Site, rest: Sequence[ast.stmt], before: Definitions) -> ast.stmt:
        """Rules 2 to 4: what follows is another task element."""
        if not is_simple(site.key) or self._accesses.at(site, before) != site.where:
            key = ast.unparse(site.key) if site.key is not None else ""
            raise self._refused(
                "key-expression", site.node, f"the key {key} of {site.where.element} is not known before"
            )
        fields = self._fields(task, rest, before)
        target = self._at_point((site.where.element, site.where.kind, None), rest)
        if target is None:
            target = self._task_at((site.where.element, site.where.kind, None), rest, site.where, fields)
            inside = self._inside(target)
            target.where = self._accesses.at(site, inside)
            target.code = self._split(target, rest, inside, frozenset())
        edge = self._edge(task, target, site.where.kind.dispatch, site.key, fields)
        return crossing(rest[0], edge, site.key, target.parameters)

    def _gather(self, task: _Task, rest: Sequence[ast.stmt], before: Definitions, several: frozenset[str]) -> ast.stmt:
        """Rules 4 and 5: the instances of a global access come together, and what follows has all of their values."""
        collected = frozenset[str]().union(*(self._accesses.collected(statement) for statement in rest))
        for name in sorted(collected - several - all_assigned(rest)):
            node = first_use(rest, name)
            raise self._refused("collection", node, f"{name} was not assigned from a Global access")
        gathered = [Gathered(self._accesses, several).visit(copy.deepcopy(statement)) for statement in rest]
        live = live_before(rest) & several
        for name in sorted(live):
            single = single_use(rest, name, self._accesses)
            if single is not None:
                raise self._refused("multi-valued", single, f"{name} has a value for each instance")
        fields = self._fields(task, rest, before)
        point = (None, None, "gather")
        target = self._at_point(point, rest)
        if target is None:
            target = self._task_at(point, rest, None, fields)
            target.gathers = collected & live
            target.code = self._split(target, gathered, self._inside(target), frozenset())
        edge = self._edge(task, target, Dispatch.GATHER, None, fields)
        return crossing(rest[0], edge, None, target.parameters)

    def _fan_out(
        self,
        task: _Task,
        loop: ast.For,
        sites: list[Site],
        after: Sequence[ast.stmt],
        before: Definitions,
    ) -> list[ast.stmt]:
        """A loop that writes to many keys: a row for each write."""
        names = {site.where.element for site in sites}
        blind = all(site.whole and site.access.blind and site.where.kind is AccessKind.PARTITIONED for site in sites)
        if len(names) != 1 or not blind:
            raise self._refused("loop-over-state", loop, f"each round accesses {' and '.join(sorted(names))}")
        following = list(self._accesses.of_all(after, after_statement(loop, before) or {}))
        if following:
            first = following[0].where.element
            raise self._refused("after-fan-out", following[0].node, f"{first} is accessed after the loop")
        element = self._declaration.elements[names.pop()]
        target = self._at_point(("fan-out", loop), ())
        if target is None:
            target = self._task_at(("fan-out", loop), (), Where(element.name, AccessKind.PARTITIONED), ())
            target.updates = True
            target.writes = writes_of(element, {site.node: site.method for site in sites})
            target.lines = set[int]().union(*(lines_of(site.node) for site in sites))
        parameters = [
            (write.method, item) for write in target.writes.values() for item in write.parameter_types.items()
        ]
        single = len(target.writes) == 1
        fields = [Column(name if single else f"{method}_{name}", type) for method, (name, type) in parameters]
        key = sites[0].key if len({ast.dump(site.key) for site in sites if site.key}) == 1 else None
        edge = self._edge(task, target, Dispatch.KEY, key, tuple(fields), fan_out=True)
        task.lines |= lines_of(loop)
        code: list[ast.stmt] = [fanning(loop, edge, {site.node: site.method for site in sites})]
        for statement in after:
            task.lines |= lines_of(statement)
        return [*code, *after]

    # Task elements and edges.

    def _fields(self, task: _Task, rest: Sequence[ast.stmt], before: Definitions) -> tuple[Column, ...]:
        """The variables that go along an edge to ``rest``, with their types."""
        live = live_before(rest)
        columns = []
        for name in self._locals:
            if name not in live:
                continue
            use = first_use(rest, name)
            if UNASSIGNED in before.get(name, frozenset({UNASSIGNED})):
                raise self._refused("maybe-unassigned", use, f"{name} may not have been assigned")
            type = self._entry.types.get(name)
            if type is None:
                assignment = first_assignment(self._entry.definition, name)
                used_in = f"used in line {use.lineno}, in another task element"
                if name in self._entry.no_values:
                    what = f"{name} is {used_in}, and {self._entry.no_values[name]}"
                    raise self._refused("mutable-variable", assignment, what)
                raise self._refused("untyped-variable", assignment, f"{name} has no type, and is {used_in}")
            if name in (task.gathers or ()) and before[name] == self._inside(task)[name]:
                what = f"the values of {name} are a list, which is used in another task element"
                raise self._refused("mutable-variable", use, what)
            columns.append(Column(name, type))
        return tuple(columns)

    def _at_point(self, place: tuple[object, ...], rest: Sequence[ast.stmt]) -> _Task | None:
        return self._points.get((*place, *map(id, rest)))

    def _task_at(
        self, place: tuple[object, ...], rest: Sequence[ast.stmt], where: Where | None, fields: Iterable[Column]
    ) -> _Task:
        task = self._new_task(where, tuple(each.name for each in fields))
        self._kept.append(rest)  # its statements are told apart by id()
        self._points[(*place, *map(id, rest))] = task
        return task

    def _new_task(self, where: Where | None, parameters: tuple[str, ...]) -> _Task:
        number = self._first + len(self.tasks)
        if number >= MAX_TASKS:
            what = f"the program has more than {MAX_TASKS} task elements"
            raise self._refused("unsupported-syntax", self._entry.definition, what)
        task = _Task(number, where, parameters)
        self.tasks.append(task)
        return task

    def _inside(self, task: _Task) -> Definitions:
        """What reaches a task element: each variable has the value that came along the edge."""
        return dict.fromkeys(task.parameters, frozenset({-1 - task.number}))

    def _edge(
        self,
        source: _Task | None,
        target: _Task,
        dispatch: Dispatch,
        key: ast.expr | None,
        fields: tuple[Column, ...],
        fan_out: bool = False,
    ) -> int:
        origin = None if source is None else source.number
        shown = None if key is None or dispatch is not Dispatch.KEY else ast.unparse(key)
        for edge in self._edges:
            if (edge.source, edge.target, edge.key) == (origin, target.number, shown):
                return edge.number
        edge = Edge(len(self._edges), origin, target.number, dispatch, shown, fields, fan_out)
        self._edges.append(edge)
        return edge.number

    def _check_collections(self, node: ast.AST) -> None:
        """After a barrier there is none any more: what is left has nothing to gather."""
        for name in sorted(self._accesses.collected(node)):
            raise self._refused("collection", first_use([node], name), f"{name} has one value")

    def _refused(self, rule: str, node: ast.AST, what: str) -> ProgramRefused:
        return RULES[rule].refuse(place_of(node, self._entry.file), what)

    def finished(self, task: _Task) -> TaskElement:
        """The task element as a value."""
        if task.where is not None:
            name = f"{'update' if task.updates else 'read'} {task.where.element}"
        elif task.gathers is not None:
            name = "merge" if task.gathers else "synchronise"
        else:
            name = "compute"
        same = [each for each in self.tasks if each.number < task.number and self._same_kind(each, task)]
        name += f" {len(same) + 1}" if same else ""
        function = None
        if not task.writes:
            code = copy.deepcopy(task.code)  # another task element may have the same statements
            function = task_function(self._name, task.parameters, code, self._accesses)
        return TaskElement(
            task.number,
            self._name,
            name,
            None if task.where is None else task.where.element,
            None if task.where is None else task.where.kind,
            tuple(sorted(task.lines)),
            task.parameters,
            tuple(each for each in task.parameters if each in (task.gathers or ())),
            task.writes,
            function,
        )

    @staticmethod
    def _same_kind(first: _Task, second: _Task) -> bool:
        elements = [None if each.where is None else each.where.element for each in (first, second)]
        gathers = [None if each.gathers is None else bool(each.gathers) for each in (first, second)]
        return elements[0] == elements[1] and gathers[0] == gathers[1] and first.updates == second.updates
