"""Data flow of statements: live variables, and the assignments that reach a statement."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochal.programs.source import assigned_names

UNASSIGNED = 0
"""The definition for a variable that can be unassigned."""
Definitions = Mapping[str, frozenset[int]]
"""By variable, the assignments that can reach it: numbers of statements, or 1 for a parameter."""
PARAMETER = 1
_INNER = (ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.SetComp)


def used(node: ast.AST) -> set[str]:
    """The names that an expression or a simple statement reads, without names of inner scopes."""
    if isinstance(node, _INNER):
        inner = {name for each in node.generators for name in assigned_names(each.target)}
        return {name for child in ast.iter_child_nodes(node) for name in used(child)} - inner
    if isinstance(node, ast.Lambda):
        return used(node.body) - {argument.arg for argument in node.args.args}
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    found = {name for child in ast.iter_child_nodes(node) for name in used(child)}
    if isinstance(node, ast.AugAssign):
        found |= set(assigned_names(node.target))
    return found


def assigned(statement: ast.stmt) -> list[str]:
    """The names that a simple statement, or the head of a loop, binds."""
    match statement:
        case ast.Assign():
            return [name for target in statement.targets for name in assigned_names(target)]
        case ast.AugAssign() | ast.For():
            return assigned_names(statement.target)
        case ast.AnnAssign():
            return assigned_names(statement.target) if statement.value is not None else []
    return []


def all_assigned(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that these statements and their nested statements bind."""
    found: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt):
                found |= set(assigned(node))
            if isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
    return found


@dataclass(frozen=True)
class _Exits:
    """The live variables at the targets of ``break`` and ``continue``."""

    after: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()


def live_before(statements: Sequence[ast.stmt], after: Iterable[str] = (), exits: _Exits | None = None) -> set[str]:
    """The variables whose values these or the following statements can use."""
    live, exits = set(after), exits or _Exits()
    for statement in reversed(statements):
        live = _live(statement, live, exits)
    return live


def _live(statement: ast.stmt, after: set[str], exits: _Exits) -> set[str]:
    match statement:
        case ast.Return() | ast.Raise():
            return used(statement)
        case ast.Break():
            return set(exits.after)
        case ast.Continue():
            return set(exits.again)
        case ast.If():
            branches = live_before(statement.body, after, exits) | live_before(statement.orelse, after, exits)
            return used(statement.test) | branches
        case ast.For():
            beyond = live_before(statement.orelse, after, exits)
            again = set(beyond)
            while True:
                inner = _Exits(frozenset(after), frozenset(again))
                once = again | (live_before(statement.body, again, inner) - set(assigned(statement)))
                if once == again:
                    return used(statement.iter) | again
                again = once
        case ast.Try():
            handled = set[str]().union(*(_live_in_handler(handler, after, exits) for handler in statement.handlers))
            live = live_before(statement.orelse, after, exits)
            for each in reversed(statement.body):
                live = _live(each, live, exits) | handled
            return live
    return (after - set(assigned(statement))) | used(statement)


def _live_in_handler(handler: ast.ExceptHandler, after: set[str], exits: _Exits) -> set[str]:
    caught = {handler.name} if handler.name else set()
    types = used(handler.type) if handler.type is not None else set[str]()
    return (live_before(handler.body, after, exits) - caught) | types


def reaching(statements: Sequence[ast.stmt], before: Definitions) -> Definitions | None:
    """The assignments that reach the end of the statements; ``None`` if the end is unreachable."""
    reached: Definitions | None = before
    for statement in statements:
        if reached is None:
            return None
        reached = after_statement(statement, reached)
    return reached


def after_statement(statement: ast.stmt, before: Definitions) -> Definitions | None:
    """Like :func:`reaching`, for one statement."""
    match statement:
        case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
            return None
        case ast.If():
            return _either(reaching(statement.body, before), reaching(statement.orelse, before))
        case ast.For():
            return within_loop(statement, before)
        case ast.Try():
            reached = reaching([*statement.body, *statement.orelse], before)
            anywhere = _maybe_assigned(all_assigned(statement.body), statement, before)
            for handler in statement.handlers:
                caught = {**anywhere, **({handler.name: frozenset({id(handler)})} if handler.name else {})}
                reached = _either(reached, reaching(handler.body, caught))
            return reached
    return {**before, **dict.fromkeys(assigned(statement), frozenset({id(statement)}))}


def within_loop(statement: ast.stmt, before: Definitions) -> Definitions:
    """The assignments that can reach an iteration or the end of a loop: those before it and those within it."""
    return _maybe_assigned(all_assigned([statement]), statement, before)


def _maybe_assigned(names: Iterable[str], statement: ast.stmt, before: Definitions) -> Definitions:
    reached = dict(before)
    for name in names:
        reached[name] = reached.get(name, frozenset({UNASSIGNED})) | {id(statement)}
    return reached


def _either(first: Definitions | None, second: Definitions | None) -> Definitions | None:
    if first is None or second is None:
        return first if second is None else second
    nothing = frozenset({UNASSIGNED})
    return {name: first.get(name, nothing) | second.get(name, nothing) for name in {*first, *second}}


def ends(statements: Sequence[ast.stmt]) -> bool:
    """Return whether the statements after these are unreachable."""
    return reaching(statements, {}) is None
