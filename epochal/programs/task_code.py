"""The code of task elements: the author's statements, with replaced state, exits and answers.

The function of a task element returns the answer of the call, or the result of :func:`crossing`.
:mod:`epochal.programs.execution` runs it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence

from epochal.programs.accesses import Accesses
from epochal.programs.conforming import function_of

STATE, CROSS, FAN_OUT = "__state__", "__cross__", "__fan_out__"


def crossing(at: ast.stmt, edge: int, key: ast.expr | None, names: Sequence[str]) -> ast.stmt:
    """``return`` to another task element, along ``edge``, with the values of these variables."""
    values = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
    arguments = [ast.Constant(edge), copy.deepcopy(key) or ast.Constant(None), values]
    call = ast.Call(ast.Name(CROSS, ast.Load()), arguments, [])
    return _located(ast.Return(call), at)


def fanning(loop: ast.For, edge: int, methods: Mapping[ast.Call, str]) -> ast.stmt:
    """The loop, in which each of these calls becomes a row along ``edge``."""
    for call, method in methods.items():
        call.__dict__["sent"] = (edge, method)
    return _Sending().visit(copy.deepcopy(loop))  # type: ignore[no-any-return]


def task_function(
    name: str, parameters: Sequence[str], code: Sequence[ast.stmt], accesses: Accesses
) -> ast.FunctionDef:
    """The definition of a task element's function."""
    body = [_OnState(accesses).visit(statement) for statement in code]
    return function_of(name, ["self", STATE, FAN_OUT, *parameters], body)


def _located(node: ast.stmt, at: ast.stmt) -> ast.stmt:
    for each in ast.walk(node):
        if not hasattr(each, "lineno") and isinstance(each, ast.expr | ast.stmt):
            ast.copy_location(each, at)
            each.end_lineno, each.end_col_offset = each.lineno, each.col_offset
    return node


class _Sending(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        sent = node.__dict__.get("sent")
        if sent is None:
            return node
        edge, method = sent
        function = ast.copy_location(ast.Name(FAN_OUT, ast.Load()), node)
        head = [ast.copy_location(ast.Constant(each), node) for each in (edge, method)]
        return ast.copy_location(ast.Call(function, [*head, *node.args], node.keywords), node)


class _OnState(ast.NodeTransformer):
    def __init__(self, accesses: Accesses) -> None:
        self._accesses = accesses

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and self._accesses.element_of(node.func.value)[0] is not None:
            node.func.value = ast.copy_location(ast.Name(STATE, ast.Load()), node.func.value)
        return node
