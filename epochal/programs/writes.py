"""The writes of a fan-out: their parameters with types, for the schema of its edge."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping

from epochal.programs.dataflow import Write
from epochal.programs.declaration import StateElement
from epochal.programs.value_types import Sequence, ValueType
from epochal.programs.vector import VectorType


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
    number = kept.element if isinstance(kept, Sequence) and parameter != "value" else kept
    if element.kind.__name__ == "DenseMatrix" and isinstance(kept, Sequence):
        number = kept.element
        if parameter == "column":
            return element.model.key[0].type
    return VectorType(number) if parameter in ("values", "amounts") else number
