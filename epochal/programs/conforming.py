"""Checks of the types of variables at assignments, in dataflows and in plain runs.

So a plain run reports a value that cannot be sent along an edge of the dataflow, at the same statement.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from epochal.programs.annotations import answer_type, value_type
from epochal.programs.distribution import Several
from epochal.programs.flow import ends
from epochal.programs.rules import RULES
from epochal.programs.source import assigned_names, evaluated, place_of, tree_of
from epochal.programs.value_types import Conform, NotAValueType, ValueType

CHECKS = "__checks__"
"""The name of the checks in the code of entries: a mapping by variable; ``return`` checks the answer."""


@dataclass(frozen=True, eq=False)
class Conforming:
    """An entry. ``definition``: the author's; ``types``: types of parameters and variables that are values."""

    function: FunctionType
    definition: ast.FunctionDef
    file: str
    parameter_types: dict[str, ValueType]
    answer: ValueType
    types: dict[str, ValueType]
    no_values: dict[str, NotAValueType]
    """Variables whose annotations are not values; they cannot leave a task element."""

    @classmethod
    def of(cls, function: FunctionType) -> Conforming:
        """Create the checks of an entry. Raises ``ProgramRefused`` for missing types."""
        definition = tree_of(function)
        file = inspect.getsourcefile(function) or "?"
        scope = {**vars(builtins), **function.__globals__}
        parameters = _parameters(definition, file, scope)
        types, no_values = dict(parameters), {}
        for node in ast.walk(definition):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                try:
                    types[name] = value_type(_evaluated(node.annotation, node, file, scope))
                except NotAValueType as error:
                    no_values[name] = error
        answer = _answer(definition, file, scope)
        return cls(function, definition, file, parameters, answer, types, no_values)

    def arguments(self, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The checked arguments of a call, by parameter. Raises ``TypeError`` and ``OverflowError``."""
        bound = inspect.signature(self.function).bind(None, *positional, **named)
        bound.apply_defaults()
        return {name: type.conform(bound.arguments[name], name) for name, type in self.parameter_types.items()}

    def call(self, program: Any, arguments: Mapping[str, Any]) -> Any:
        """Run the unsplit entry."""
        return self._compiled(program, **arguments)

    @property
    def checks(self) -> dict[str, Conform]:
        """The checks that the code calls with the values of its variables, and with its answer."""
        found = {name: type.conforming(name) for name, type in self.types.items()}
        return {**found, "return": self.answer.conforming("the answer")}

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements with a check after each assignment of a typed variable, and of the answer. They end with a
        return."""
        body = self.definition.body[0 if ast.get_docstring(self.definition) is None else 1 :]
        last = ast.Return(ast.Constant(None))
        end = self.definition.end_lineno or self.definition.lineno
        last.lineno = last.end_lineno = end
        last.col_offset = last.end_col_offset = 0
        return _Checking(self.types).statements([*copy.deepcopy(body), *([] if ends(body) else [last])])

    @cached_property
    def _compiled(self) -> Any:
        names = ["self", *self.parameter_types]
        definition = function_of(self.definition.name, names, self.body)
        return compiled(
            definition,
            self.file,
            {**self.function.__globals__, CHECKS: {name: _of_each(check) for name, check in self.checks.items()}},
        )


def function_of(name: str, parameters: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """A definition without defaults and annotations."""
    arguments = ast.arguments([], [ast.arg(each) for each in parameters], None, [], [], None, [])
    definition = ast.parse(f"def {name}(): pass").body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.args, definition.body = arguments, body or [ast.Pass()]
    return ast.fix_missing_locations(definition)


def compiled(definition: ast.FunctionDef, file: str, names: dict[str, Any]) -> Any:
    """Compile the function with the global ``names``. Tracebacks show the author's lines."""
    exec(compile(ast.Module([definition], []), file, "exec"), names)
    return names[definition.name]


def _of_each(check: Conform) -> Conform:
    """Check a value; in a plain run it can be several values, one per instance."""
    return lambda value: value.conform(check) if isinstance(value, Several) else check(value)


class _Checking(ast.NodeTransformer):
    def __init__(self, types: Mapping[str, ValueType]) -> None:
        self._types = types

    def statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        changed: list[ast.stmt] = []
        for statement in body:
            result = self.visit(statement)
            changed += result if isinstance(result, list) else [result]
        return changed

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        return [node, *self._checks([name for target in node.targets for name in assigned_names(target)], node)]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        return [node, *self._checks(assigned_names(node.target), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None:
            return []
        assign = ast.copy_location(ast.Assign([node.target], node.value), node)
        return [assign, *self._checks(assigned_names(node.target), node)]

    def visit_For(self, node: ast.For) -> ast.stmt:
        body = [*self._checks(assigned_names(node.target), node), *self.statements(node.body)]
        return ast.copy_location(ast.For(node.target, node.iter, body, self.statements(node.orelse)), node)

    def visit_If(self, node: ast.If) -> ast.stmt:
        body = self.statements(node.body) or [ast.copy_location(ast.Pass(), node)]
        return ast.copy_location(ast.If(node.test, body, self.statements(node.orelse)), node)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        return ast.copy_location(ast.Return(_check("return", value, node)), node)

    def _checks(self, names: Sequence[str], node: ast.stmt) -> list[ast.stmt]:
        return [
            ast.copy_location(ast.Assign([_name(name, node, ast.Store())], _check(name, _name(name, node), node)), node)
            for name in names
            if name in self._types
        ]


def _check(name: str, value: ast.expr, node: ast.stmt) -> ast.expr:
    call = ast.Call(ast.Subscript(_name(CHECKS, node), ast.Constant(name), ast.Load()), [value], [])
    return ast.fix_missing_locations(ast.copy_location(call, node))


def _name(name: str, node: ast.stmt, context: ast.expr_context | None = None) -> ast.Name:
    return ast.copy_location(ast.Name(name, context or ast.Load()), node)


def _parameters(definition: ast.FunctionDef, file: str, scope: dict[str, Any]) -> dict[str, ValueType]:
    arguments = definition.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or not arguments.args:
        raise RULES["unsupported-syntax"].refuse(
            place_of(definition, file), f"{definition.name} has parameters other than self and plain names"
        )
    types = {}
    for argument in arguments.args[1:]:
        what = f"the parameter {argument.arg} of {definition.name}"
        if argument.annotation is None:
            raise RULES["untyped-entry"].refuse(place_of(argument, file), f"{what} has no type")
        try:
            types[argument.arg] = value_type(_evaluated(argument.annotation, argument, file, scope))
        except NotAValueType as error:
            raise RULES["untyped-entry"].refuse(place_of(argument, file), f"{what}: {error}") from None
    return types


def _answer(definition: ast.FunctionDef, file: str, scope: dict[str, Any]) -> ValueType:
    if definition.returns is None:
        raise RULES["untyped-entry"].refuse(place_of(definition, file), f"the answer of {definition.name} has no type")
    try:
        return answer_type(_evaluated(definition.returns, definition, file, scope))
    except NotAValueType as error:
        what = f"what {definition.name} answers: {error}"
        raise RULES["untyped-entry"].refuse(place_of(definition, file), what) from None


def _evaluated(annotation: ast.expr, node: ast.AST, file: str, scope: dict[str, Any]) -> Any:
    try:
        return evaluated(annotation, scope)
    except Exception as error:  # noqa: BLE001 # whatever the author's expression raises
        shown = f"{ast.unparse(annotation)} ({type(error).__name__}: {error})"
        raise RULES["untyped-entry"].refuse(place_of(node, file), f"the type {shown} does not exist") from None
