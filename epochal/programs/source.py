"""The source of a program's methods as syntax trees, with the lines that they have in the author's file."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from epochal.programs.rule import Place
from epochal.programs.rules import RULES


def tree_of(function: FunctionType) -> ast.FunctionDef:
    """The function's definition. Raises :class:`ProgramRefused` where Python knows no source of it."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise RULES["no-source"].refuse(None, f"{function.__qualname__} has no source") from None
    try:
        definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except SyntaxError:
        raise RULES["no-source"].refuse(None, f"{function.__qualname__} is no function of its own") from None
    if not isinstance(definition, ast.FunctionDef):
        place = Place(inspect.getsourcefile(function) or "?", first)
        raise RULES["unsupported-syntax"].refuse(place, f"{function.__name__} is no plain function")
    ast.increment_lineno(definition, first - 1)
    return definition


def place_of(node: ast.AST, file: str) -> Place:
    """Where a node stands."""
    text = ast.unparse(node).splitlines()[0] if isinstance(node, ast.stmt | ast.expr) else ""
    return Place(file, getattr(node, "lineno", 0), text)


def nodes_in(nodes: Iterator[ast.AST] | list[ast.stmt] | list[ast.AST]) -> Iterator[ast.AST]:
    """All nodes below these, and these, in the order of the text."""
    for node in nodes:
        yield node
        yield from nodes_in(list(ast.iter_child_nodes(node)))


def assigned_names(target: ast.expr) -> list[str]:
    """The names that an assignment to ``target`` binds."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, ast.Tuple):
        return [name for element in target.elts for name in assigned_names(element)]
    return []


def evaluated(annotation: ast.expr, names: dict[str, Any]) -> Any:
    """The value of an annotation, evaluated among the names of its module."""
    expression = ast.Expression(annotation)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        expression = ast.parse(annotation.value, mode="eval")
    return eval(compile(expression, "<annotation>", "eval"), names)
