"""The accesses of statements to state: element, kind and key (SDG 4.2, steps 2 and 3)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.programs.dataflow import AccessKind
from epochal.programs.declaration import StateElement
from epochal.programs.distribution import Collection, Distribution, Global
from epochal.programs.flow import Definitions, after_statement, used, within_loop
from epochal.programs.rules import RULES
from epochal.programs.source import place_of
from epochal.programs.state import Access


@dataclass(frozen=True)
class Where:
    """The place of a task element: a state element, and its instances.

    ``key``: the expression of the key with the assignments that reach it, so that equal keys have equal values.
    """

    element: str
    kind: AccessKind
    key: tuple[str, frozenset[tuple[str, frozenset[int]]]] | None = None


@dataclass(frozen=True)
class Site:
    """One access. ``whole``: the access is a complete statement."""

    where: Where
    node: ast.Call
    method: str
    access: Access
    key: ast.expr | None
    whole: bool = field(compare=False, default=False)


class Accesses:
    """Finds the accesses of an entry. ``names``: the names of its module."""

    def __init__(self, elements: Mapping[str, StateElement], names: Mapping[str, Any], file: str) -> None:
        self._elements = elements
        self._names = names
        self._file = file

    def of(self, statement: ast.stmt, before: Definitions) -> list[Site]:
        """All accesses of a statement and its nested statements."""
        match statement:
            case ast.If():
                inner = [*self.of_all(statement.body, before), *self.of_all(statement.orelse, before)]
                return [*self.of_expression(statement.test, before), *inner]
            case ast.For():
                rounds = within_loop(statement, before)
                inner = [*self.of_all(statement.body, rounds), *self.of_all(statement.orelse, rounds)]
                return [*self.of_expression(statement.iter, before), *inner]
            case ast.Try():
                return []
        return self.of_expression(statement, before)

    def of_all(self, statements: Sequence[ast.stmt], before: Definitions) -> Iterator[Site]:
        """All accesses of consecutive statements."""
        reached: Definitions | None = before
        for statement in statements:
            if reached is None:
                return
            yield from self.of(statement, reached)
            reached = after_statement(statement, reached)

    def of_expression(self, node: ast.AST, before: Definitions) -> list[Site]:
        """The accesses of an expression, or of a simple statement."""
        found = []
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                name, everywhere = self.element_of(call.func.value)
                if name is not None:
                    whole = isinstance(node, ast.Expr) and node.value is call
                    found.append(self._site(call, call.func.attr, self._elements[name], everywhere, before, whole))
        return found

    def element_of(self, node: ast.expr) -> tuple[str | None, bool]:
        """The state element of ``self.name`` or ``Global(self.name)``, and whether the access is global."""
        if self.is_call_of(Global, node):
            assert isinstance(node, ast.Call)
            return self.element_of(node.args[0])[0], True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return (node.attr if node.attr in self._elements else None), False
        return None, False

    def is_call_of(self, function: Any, node: ast.AST) -> bool:
        """Return whether the node calls this function, under any name of the module."""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and len(node.args) == 1
            and self._names.get(node.func.id) is function
        )

    def collected(self, node: ast.AST) -> set[str]:
        """The variables in ``Collection(..)``."""
        calls = [each for each in ast.walk(node) if self.is_call_of(Collection, each)]
        return {call.args[0].id for call in calls if isinstance(call, ast.Call) and isinstance(call.args[0], ast.Name)}

    def at(self, site: Site, before: Definitions) -> Where:
        """The place of the access if it were made at this point; unchanged if the key has the same value here."""
        return Where(site.where.element, site.where.kind, _identity(site.key, before))

    def _site(
        self, call: ast.Call, method: str, element: StateElement, everywhere: bool, before: Definitions, whole: bool
    ) -> Site:
        access = element.kind.access(method)
        assert access is not None
        place = place_of(call, self._file)
        if element.distribution is Distribution.PARTIAL:
            kind = AccessKind.GLOBAL if everywhere else AccessKind.LOCAL
            return Site(Where(element.name, kind), call, method, access, None, whole)
        if everywhere:
            raise RULES["global-of-partitioned"].refuse(place, f"{element.name} is partitioned")
        if not access.key:
            raise RULES["no-access-key"].refuse(place, f"{method} has no key of {element.name}")
        parameter = access.key.get(element.by or "")
        if parameter is None:
            what = f"{method} is by {' and '.join(access.key)}, and {element.name} is partitioned by {element.by}"
            raise RULES["other-partitioning"].refuse(place, what)
        key = _argument(call, element.kind.parameters(method), parameter)
        if key is None:
            raise RULES["no-access-key"].refuse(place, f"{method} is called without {parameter}")
        return Site(
            Where(element.name, AccessKind.PARTITIONED, _identity(key, before)), call, method, access, key, whole
        )


def is_simple(key: ast.expr | None) -> bool:
    """Return whether the key is a variable or a constant, which can be evaluated anywhere without side effects."""
    if isinstance(key, ast.UnaryOp):
        return isinstance(key.operand, ast.Constant)
    return key is None or isinstance(key, ast.Name | ast.Constant)


def _identity(key: ast.expr | None, before: Definitions) -> tuple[str, frozenset[tuple[str, frozenset[int]]]] | None:
    if key is None:
        return None
    return ast.dump(key), frozenset((name, before.get(name, frozenset())) for name in used(key))


def _argument(call: ast.Call, parameters: tuple[str, ...], name: str) -> ast.expr | None:
    position = parameters.index(name)
    if position < len(call.args):
        return call.args[position]
    return next((each.value for each in call.keywords if each.arg == name), None)
