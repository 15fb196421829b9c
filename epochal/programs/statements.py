"""Questions about statements: where a variable is used, what a barrier does to them, which lines they have."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence

from epochal.programs import value_types
from epochal.programs.accesses import Accesses
from epochal.programs.dataflow import Write
from epochal.programs.declaration import StateElement
from epochal.programs.value_types import ValueType
from epochal.programs.vector import VectorType


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


def writes_of(element: StateElement, sites: Mapping[ast.Call, str]) -> dict[str, Write]:
    """The methods, by the calls of them, with the types that their parameters have for this state element."""
    written = {}
    for method in sorted(set(sites.values())):
        types = {name: _type(element, name) for name in element.kind.parameters(method)}
        calls = [call for call, called in sites.items() if called == method]
        written[method] = Write(method, types, all(_rises(getattr(element.kind, method), call) for call in calls))
    return written


def _rises(method: Callable[..., None], call: ast.Call) -> bool:
    """Whether a call adds a whole number that stands in the text and is not negative."""
    bound = inspect.signature(method).bind(None, *call.args, **{str(each.arg): each.value for each in call.keywords})
    bound.apply_defaults()
    amount = bound.arguments.get("amount")
    number = amount.value if isinstance(amount, ast.Constant) else amount
    return type(number) is int and number >= 0


def _type(element: StateElement, parameter: str) -> ValueType:
    """By its name: a key column, a number or value, or a vector of them."""
    for column in (*element.model.key, *element.model.sub_key):
        if column.name == parameter:
            return column.type
    kept = element.model.value[0].type
    number = kept.element if isinstance(kept, value_types.Sequence) and parameter != "value" else kept
    if element.kind.__name__ == "DenseMatrix" and isinstance(kept, value_types.Sequence):
        number = kept.element
        if parameter == "column":
            return element.model.key[0].type
    return VectorType(number) if parameter in ("values", "amounts") else number
