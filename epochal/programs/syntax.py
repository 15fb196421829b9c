"""The allow-list of syntax for programs, checked before the translation."""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from epochal.programs.conforming import Conforming
from epochal.programs.declaration import Declaration
from epochal.programs.distribution import Collection, Global
from epochal.programs.flow import all_assigned
from epochal.programs.rules import RULES, ProgramRefused
from epochal.programs.source import place_of, tree_of
from epochal.programs.state import State
from epochal.programs.vector import Vector

FUNCTIONS = frozenset(
    {
        "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int", "len", "list", "map",
        "max", "min", "pow", "range", "reversed", "round", "sorted", "str", "sum", "tuple", "zip",
        "ArithmeticError", "Exception", "IndexError", "KeyError", "LookupError", "OverflowError", "TypeError",
        "ValueError", "ZeroDivisionError",
    }
)  # fmt: skip
"""Builtins whose result depends only on their arguments."""
_STATEMENTS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.If, ast.For, ast.Break, ast.Continue, ast.Pass, ast.Return,
    ast.Raise, ast.Assert, ast.Try,
)  # fmt: skip
_EXPRESSIONS = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.IfExp, ast.Call, ast.Tuple, ast.List, ast.Dict, ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.DictComp,
    ast.GeneratorExp, ast.Lambda,
)  # fmt: skip
_INNER = (ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


def check_syntax(declaration: Declaration) -> None:
    """Raises ``ProgramRefused`` for the first unsupported statement or expression, by line."""
    found: list[ProgramRefused] = []
    calls: dict[str, list[tuple[str, ast.AST]]] = {}
    for entry in declaration.entries.values():
        found += _Checked(declaration, entry.function, entry.definition, entry).refusals()
    for name, method in declaration.methods.items():
        checked = _Checked(declaration, method, tree_of(method), None)
        found += checked.refusals()
        calls[name] = checked.methods
    found += _recursions(calls, declaration.file)
    if found:
        raise min(found, key=lambda refused: refused.place.line if refused.place else 0)


class _Checked:
    """Checks one method. ``methods``: the methods of the class that it calls."""

    def __init__(
        self, declaration: Declaration, function: FunctionType, definition: ast.FunctionDef, entry: Conforming | None
    ) -> None:
        self.methods: list[tuple[str, ast.AST]] = []
        self._declaration = declaration
        self._function = function
        self._definition = definition
        self._entry = entry
        self._locals = {argument.arg for argument in definition.args.args} | all_assigned(definition.body)

    def refusals(self) -> Iterator[ProgramRefused]:
        for statement in self._definition.body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # its docstring
            yield from self._statement(statement, inner=None)

    def _refuse(self, rule: str, node: ast.AST, what: str) -> Iterator[ProgramRefused]:
        yield RULES[rule].refuse(place_of(node, self._declaration.file), what)

    def _statement(self, node: ast.stmt, inner: str | None) -> Iterator[ProgramRefused]:
        if isinstance(node, ast.While):
            yield from self._refuse("while-loop", node, "while has no bound")
        elif not isinstance(node, _STATEMENTS):
            yield from self._refuse("unsupported-syntax", node, f"{_kind(node)} is not on the list")
        elif isinstance(node, ast.Try) and (node.finalbody or any(handler.type is None for handler in node.handlers)):
            yield from self._refuse("unsupported-syntax", node, "finally, or except of everything, is not on the list")
        else:
            within = "state-in-try" if isinstance(node, ast.Try) else inner
            for target in _targets(node):
                yield from self._target(target)
            for child in ast.iter_child_nodes(node):
                yield from self._child(node, child, within)

    def _child(self, parent: ast.AST, child: ast.AST, inner: str | None) -> Iterator[ProgramRefused]:
        if isinstance(parent, ast.AnnAssign) and child is parent.annotation:
            return
        if isinstance(child, ast.stmt):
            yield from self._statement(child, inner)
        elif isinstance(child, ast.expr):
            yield from self._expression(child, inner, set())
        elif isinstance(child, ast.ExceptHandler):
            for each in ast.iter_child_nodes(child):
                yield from self._child(child, each, inner)

    def _target(self, target: ast.expr) -> Iterator[ProgramRefused]:
        if isinstance(target, ast.Tuple):
            for element in target.elts:
                yield from self._target(element)
        elif isinstance(target, ast.Attribute) and _is_self(target.value):
            yield from self._refuse("attribute", target, f"self.{target.attr} is assigned")
        elif isinstance(target, ast.Name) and (target.id in FUNCTIONS or target.id.startswith("__")):
            yield from self._refuse("unsupported-syntax", target, f"{target.id} is a name of Python's own")
        elif not isinstance(target, ast.Name | ast.Subscript):
            yield from self._refuse("unsupported-syntax", target, "an assignment to an expression other than a name")

    def _expression(self, node: ast.expr, inner: str | None, bound: set[str]) -> Iterator[ProgramRefused]:
        """Check an expression. ``bound``: names of enclosing comprehensions and lambdas."""
        if isinstance(node, ast.Set | ast.SetComp):
            yield from self._refuse("set", node, "a set is made")
            return
        if not isinstance(node, _EXPRESSIONS):
            yield from self._refuse("unsupported-syntax", node, f"{_kind(node)} is not on the list")
            return
        if isinstance(node, ast.Lambda):
            bound = bound | {argument.arg for argument in node.args.args}
        if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
            bound = bound | {
                name.id for each in node.generators for name in ast.walk(each.target) if isinstance(name, ast.Name)
            }
        if isinstance(node, _INNER):
            inner = inner or "state-in-inner-scope"
        if isinstance(node, ast.Call):
            yield from self._call(node, inner, bound)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node, inner, bound)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield from self._name(node, bound)
        elif isinstance(node, ast.Name | ast.Constant):
            return
        else:
            yield from self._children(node, inner, bound)

    def _children(self, node: ast.AST, inner: str | None, bound: set[str]) -> Iterator[ProgramRefused]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child, inner, bound)
            elif isinstance(child, ast.comprehension | ast.keyword):
                yield from self._children(child, inner, bound)

    def _call(self, node: ast.Call, inner: str | None, bound: set[str]) -> Iterator[ProgramRefused]:
        function = node.func
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            yield from self._refuse("unsupported-syntax", node, "* or ** in a call is not on the list")
            return
        if isinstance(function, ast.Attribute) and (element := self._element(function.value)) is not None:
            yield from self._access(node, function.attr, element, inner)
        elif isinstance(function, ast.Attribute) and _is_self(function.value):
            if function.attr not in self._declaration.methods:
                what = "is an entry" if function.attr in self._declaration.entries else "is no method"
                yield from self._refuse("unknown-call", node, f"self.{function.attr} {what}")
            self.methods.append((function.attr, node))
        elif isinstance(function, ast.Attribute):
            yield from self._method(function, inner, bound)
        elif isinstance(function, ast.Name) and self._global(function.id, bound) in (Global, Collection):
            yield from self._distributed(node, inner)
            return
        elif isinstance(function, ast.Name) and function.id in bound | self._locals:
            yield from self._refuse("unknown-call", node, f"{function.id} is a variable")
        elif isinstance(function, ast.Name):
            callee = self._global(function.id, bound)
            if callee in (set, frozenset):
                yield from self._refuse("set", node, "a set is made")
            elif not (isinstance(callee, type) and issubclass(callee, State)) and not _is_allowed(function.id, callee):
                yield from self._refuse("unknown-call", node, f"{function.id} is not on the list")
        else:
            yield from self._refuse("unknown-call", node, "the called expression is not a name")
        for child in (*node.args, *(each.value for each in node.keywords)):
            yield from self._expression(child, inner, bound)

    def _method(self, function: ast.Attribute, inner: str | None, bound: set[str]) -> Iterator[ProgramRefused]:
        """Check ``value.method(..)``, ``math.exp(..)`` or ``Vector.dense(..)``."""
        if function.attr.startswith("_") or function.attr in ("format", "format_map"):
            yield from self._refuse("unknown-call", function, f"{function.attr} is not on the list")
        if isinstance(function.value, ast.Name) and function.value.id not in bound | self._locals:
            owner = self._global(function.value.id, bound)
            if owner is math or owner is Vector:
                if owner is Vector and function.attr != "dense":
                    yield from self._refuse("unknown-call", function, f"{ast.unparse(function)} is not on the list")
                return
            if not _is_constant(owner):
                yield from self._refuse("unknown-call", function, f"{ast.unparse(function)} is not on the list")
                return
        yield from self._expression(function.value, inner, bound)

    def _distributed(self, node: ast.Call, inner: str | None) -> Iterator[ProgramRefused]:
        """Check ``Global(..)`` without a method call, or ``Collection(..)``."""
        assert isinstance(node.func, ast.Name)
        if self._global(node.func.id, set()) is Global:
            yield from self._refuse("state-as-value", node, "Global(..) is not followed by a method")
        elif len(node.args) != 1 or not isinstance(node.args[0], ast.Name) or self._entry is None:
            yield from self._refuse(
                "collection", node, "Collection(..) does not hold the name of a variable of an entry"
            )
        elif inner is not None:
            yield from self._refuse(inner, node, "Collection(..) waits for all instances")

    def _element(self, node: ast.expr) -> str | None:
        """The state element of ``self.name`` or ``Global(self.name)``."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
            return self._element(node.args[0]) if self._global(node.func.id, set()) is Global else None
        if isinstance(node, ast.Attribute) and _is_self(node.value) and node.attr in self._declaration.elements:
            return node.attr
        return None

    def _access(self, node: ast.Call, method: str, name: str, inner: str | None) -> Iterator[ProgramRefused]:
        element = self._declaration.elements[name]
        what = f"self.{name}.{method}(..)"
        if inner is not None:
            yield from self._refuse(inner, node, f"{what} accesses state")
        if self._entry is None:
            yield from self._refuse("state-in-method", node, f"{self._definition.name} accesses {name}")
        if element.kind.access(method) is None:
            known = ", ".join(sorted(element.kind.accesses()))
            yield from self._refuse("unknown-access", node, f"{element.kind.__name__} has {known}, but no {method}")

    def _attribute(self, node: ast.Attribute, inner: str | None, bound: set[str]) -> Iterator[ProgramRefused]:
        if _is_self(node.value):
            if node.attr in self._declaration.elements:
                yield from self._refuse("state-as-value", node, f"self.{node.attr} is used without a method")
            elif not _is_constant(getattr(self._declaration.program, node.attr, object())):
                yield from self._refuse("attribute", node, f"self.{node.attr} is not declared")
        elif isinstance(node.value, ast.Name) and self._global(node.value.id, bound) is math:
            return
        else:
            yield from self._refuse(
                "unsupported-syntax", node, f"the attribute {node.attr} is read: only methods are called"
            )

    def _name(self, node: ast.Name, bound: set[str]) -> Iterator[ProgramRefused]:
        if node.id == "self":
            yield from self._refuse("state-as-value", node, "self is passed on")
        elif node.id not in bound | self._locals:
            value = self._global(node.id, bound)
            if not _is_constant(value) and not _is_allowed(node.id, value):
                rule = "global-variable" if value is not _MISSING else "unknown-call"
                kind = (
                    "there is no variable" if value is _MISSING else "a variable of the module, or something else, is"
                )
                yield from self._refuse(rule, node, f"{kind} {node.id}")

    def _global(self, name: str, bound: set[str]) -> Any:
        if name in bound | self._locals:
            return None
        return self._function.__globals__.get(name, getattr(builtins, name, _MISSING))


_MISSING = object()


def _recursions(calls: dict[str, list[tuple[str, ast.AST]]], file: str) -> Iterator[ProgramRefused]:
    for name in calls:
        reached, pending = set[str](), [name]
        while pending:
            caller = pending.pop()
            for callee, node in calls.get(caller, ()):
                if callee == name:
                    yield RULES["recursion"].refuse(place_of(node, file), f"{name} calls itself")
                if callee not in reached:
                    reached.add(callee)
                    pending.append(callee)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For) else []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_allowed(name: str, value: Any) -> bool:
    return name in FUNCTIONS and value is getattr(builtins, name)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, int | float | str | bytes)


def _kind(node: ast.AST) -> str:
    return _KINDS.get(type(node).__name__, type(node).__name__)


_KINDS = {
    "NamedExpr": "an assignment in an expression (:=)",
    "FunctionDef": "a function in a method",
    "ClassDef": "a class in a method",
    "With": "with",
    "Delete": "del",
    "Import": "import",
    "ImportFrom": "import",
    "Global": "global",
    "Nonlocal": "nonlocal",
    "Match": "match",
    "Yield": "yield",
    "YieldFrom": "yield",
    "Await": "await",
    "Starred": "*",
}
