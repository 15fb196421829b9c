"""Expressions and code of the author, as stored in manifests: see :mod:`epochal.state.definition`."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from epochal.declarations.expressions import Expression
from epochal.declarations.names import ARTIFACT_PACKAGE
from epochal.state import definition
from epochal.state.definition import Argument, Code, Group, Value, Written
from epochal.state.type_names import quoted


def written(expression: Expression) -> Written:
    """The expression as data: SQL text unchanged, function calls with their arguments."""
    call = expression.call
    if call.target is None and call.name in ("expr", "col", "column") and isinstance(call.arguments[0], str):
        return call.arguments[0]
    is_column = _takes_columns(call.name) if call.target is None else _never
    return definition.Call(
        call=call.name,
        on=None if call.target is None else written(call.target),
        arguments=tuple(_argument(each, is_column(position)) for position, each in enumerate(call.arguments)),
        named={name: _argument(each, is_column(name)) for name, each in call.named.items()},
    )


def code_of(object: Any) -> Code:
    """The identity of an author's class or function, and the hash of its syntax tree."""
    settings: dict[str, Any] = {}
    while isinstance(object, partial):
        settings |= {str(position): each for position, each in enumerate(object.args)} | object.keywords
        object = object.func
    if not isinstance(object, type) and not inspect.isroutine(object):
        settings |= getattr(object, "__dict__", {})
        object = type(object)
    while isinstance(object, type) and "__qualname__" not in vars(object) and _is_configured(object):
        settings = {name: each for name, each in vars(object).items() if not name.startswith("__")} | settings
        object = object.__bases__[0]
    object = inspect.unwrap(object)
    module, name = str(getattr(object, "__module__", "")), str(getattr(object, "__qualname__", type(object).__name__))
    if module.startswith(ARTIFACT_PACKAGE):
        module = module.partition(".")[2] or "pipeline"
    tree = _tree_of(object)
    if tree is None:
        return Code(module=module, name=name)
    said = tree + "".join(f"\n{key}={each!r}" for key, each in sorted(settings.items()) if _is_plain(each))
    return Code(module=module, name=name, sha256=hashlib.sha256(said.encode()).hexdigest()[:16])


def _argument(value: Any, names_column: bool) -> Argument:
    if isinstance(value, Expression):
        return written(value)
    if isinstance(value, str):
        return (
            (value if value == "*" else ".".join(map(_quoted, value.split("."))))
            if names_column
            else Value(value=value)
        )
    if isinstance(value, (list, tuple)):
        return Group(group=tuple(_argument(each, names_column) for each in value))
    if value is None or isinstance(value, (bool, int, float)):
        return Value(value=value)
    return code_of(value) if callable(value) else Value(value=repr(value))


def _quoted(name: str) -> str:
    return name if name.startswith("`") else quoted(name)


def _never(position: int | str) -> bool:
    return False


@cache
def _takes_columns(name: str) -> Callable[[int | str], bool]:
    """For a function of Spark: whether a string argument, by position or name, names a column (``lit`` takes a
    value)."""
    import pyspark.sql.functions as spark_functions

    function = getattr(spark_functions, name, None)
    try:
        parameters = list(inspect.signature(function).parameters.values()) if function is not None else []
    except (TypeError, ValueError):
        parameters = []
    named = {each.name: "ColumnOrName" in str(each.annotation) for each in parameters}
    many = next((position for position, each in enumerate(parameters) if each.kind is each.VAR_POSITIONAL), None)
    in_order = list(named.values())

    def takes_column(at: int | str) -> bool:
        if isinstance(at, str):
            return named.get(at, False)
        if many is not None and at >= many:
            return in_order[many]
        return at < len(in_order) and in_order[at]

    return takes_column


def _is_configured(cls: type) -> bool:
    """Return whether this is a class with replaced settings: same name and module as its base, without source."""
    base = cls.__bases__[0]
    return base.__name__ == cls.__name__ and base.__module__ == cls.__module__


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (str, bytes, bool, int, float))


@functools.lru_cache(maxsize=1024)
def _tree_of(object: Any) -> str | None:
    """The syntax tree as text, without positions and docstrings; ``None`` if the source is unavailable."""
    try:
        lines, _ = inspect.getsourcelines(object)
        tree: ast.AST = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return _tree_of_lambda(object)
    if getattr(object, "__name__", None) == "<lambda>":
        return _tree_of_lambda(object)
    return ast.dump(_WithoutDocstrings().visit(tree))


def _tree_of_lambda(object: Any) -> str | None:
    """The lambdas on the line of this one; the statement around it may not parse alone."""
    code = getattr(object, "__code__", None)
    if code is None:
        return None
    try:
        lines, _ = inspect.findsource(object)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError):
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    return "".join(ast.dump(node) for node in found) or None


class _WithoutDocstrings(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
        return node
