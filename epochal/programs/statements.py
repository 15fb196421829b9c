"""Questions about statements: where a variable is used, what a barrier does to them, which lines they have."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from epochal.programs.accesses import Accesses


class Gathered(ast.NodeTransformer):
    """``Collection(x)`` becomes ``x``, which after the barrier is the list. ``names``: the variables that come to this
    barrier; there may be others after it."""

    def __init__(self, accesses: Accesses, names: frozenset[str]) -> None:
        self._accesses, self._names = accesses, names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        here = _is_collection(node) and bool(self._accesses.collected(node) & self._names)
        return node.args[0] if here else self.generic_visit(node)


def _is_collection(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and len(node.args) == 1 and isinstance(node.args[0], ast.Name)


def returns(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in ast.walk(statement))


def first_real(body: Sequence[ast.stmt]) -> ast.stmt:
    for statement in body:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return statement
    return body[0]


def lines_of(node: ast.AST) -> set[int]:
    return {each.lineno for each in ast.walk(node) if hasattr(each, "lineno")}


def loaded(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def first_use(statements: Sequence[ast.AST], name: str) -> ast.expr:
    uses = [
        node
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return min(uses, key=lambda node: (node.lineno, node.col_offset))


def single_use(statements: Sequence[ast.stmt], name: str, accesses: Accesses) -> ast.expr | None:
    """Where the variable is used as if it had one value."""
    gathered = {
        id(node.args[0])
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and _is_collection(node) and accesses.collected(node)
    }
    for statement in statements:
        for node in ast.walk(statement):
            is_use = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
            if is_use and id(node) not in gathered:
                assert isinstance(node, ast.Name)
                return node
    return None


def first_assignment(definition: ast.FunctionDef, name: str) -> ast.AST:
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return node
    return definition
