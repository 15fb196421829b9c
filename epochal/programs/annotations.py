"""Value types of annotations: of parameters, variables and answers of a program."""

from __future__ import annotations

import types
import typing
from typing import Any

from epochal.programs.value_types import (
    NOTHING,
    SCALARS,
    Answers,
    Fields,
    NotAValueType,
    Optional,
    Sequence,
    ValueType,
    number_type,
)
from epochal.programs.vector import Vector, VectorType

_INSTEAD = {
    list: "a list can be changed after it was sent: use tuple[X, ...]",
    dict: "a dict can be changed after it was sent: use a tuple of pairs, or a Vector",
    set: "a set has no order: use a sorted tuple[X, ...]",
    frozenset: "a set has no order: use a sorted tuple[X, ...]",
    tuple: "declare the element types: tuple[int, ...] or tuple[str, int]",
}
VALUE_TYPES = "int, float, str, bool, bytes, tuple[..], Vector[..] and X | None"


def value_type(annotation: Any) -> ValueType:
    """The value type of an evaluated annotation. Raises :class:`NotAValueType`."""
    if annotation in SCALARS:
        return SCALARS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Vector or origin is Vector:
        return VectorType(number_type(arguments))
    if origin in (typing.Union, types.UnionType):
        inner = [each for each in arguments if each is not type(None)]
        if len(inner) == 1 and len(arguments) == 2:
            return Optional(value_type(inner[0]))
        raise NotAValueType("a value has one type, or is None: X | None")
    if origin is tuple and arguments:
        if arguments[-1] is Ellipsis:
            return Sequence(value_type(arguments[0]))
        return Fields(tuple(map(value_type, arguments)))
    kind = origin or annotation
    if kind in _INSTEAD:
        raise NotAValueType(_INSTEAD[kind], mutable=kind is not tuple)
    raise NotAValueType(f"{getattr(kind, '__name__', kind)} is not a value type. Use {VALUE_TYPES}")


def answer_type(annotation: Any) -> ValueType:
    """Like :func:`value_type`, for an answer, which can also be None, a list or a dict of values."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return NOTHING
    if origin is list and arguments:
        return Sequence(answer_type(arguments[0]), list)
    if origin is dict and arguments:
        return Answers(value_type(arguments[0]), answer_type(arguments[1]))
    return value_type(annotation)
