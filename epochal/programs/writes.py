"""The writes of a fan-out: their parameters with types, for the schema of its edge."""

from __future__ import annotations

from collections.abc import Iterable

from epochal.programs.dataflow import Write
from epochal.programs.declaration import StateElement
from epochal.programs.value_types import Sequence, ValueType
from epochal.programs.vector import VectorType


def writes_of(element: StateElement, methods: Iterable[str]) -> dict[str, Write]:
    """The methods, with the types that their parameters have for this state element."""
    return {
        method: Write(method, {name: _type(element, name) for name in element.kind.parameters(method)})
        for method in sorted(methods)
    }


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
