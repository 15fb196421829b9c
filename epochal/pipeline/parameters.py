"""Typed parameters: the pydantic model that a pipeline's ``build(parameters: Parameters)`` asks for."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from epochal.declarations.names import closest, listed
from epochal.errors import ArtifactError, ParameterError


def parameters_model(build: Callable[..., Any]) -> type[BaseModel] | None:
    """The model that ``build`` takes; ``None`` when it takes nothing. Raises ``ArtifactError`` with the fix."""
    declared = list(inspect.signature(build).parameters.values())
    if not declared:
        return None
    fix = "Write `def build(parameters: Parameters) -> Pipeline:`, with a pydantic model `class Parameters(BaseModel)`."
    if len(declared) > 1:
        raise ArtifactError(f"build() takes {len(declared)} arguments; it can take one, its parameters. {fix}")
    try:
        annotation = typing.get_type_hints(build).get(declared[0].name)
    except (NameError, TypeError) as error:
        raise ArtifactError(f"The annotations of build() cannot be read: {error}. {fix}") from error
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        raise ArtifactError(f"build() does not say what its parameters are. {fix}")
    return annotation


def parse_parameters(model: type[BaseModel] | None, values: Mapping[str, Any]) -> BaseModel | None:
    """Check ``values`` against the model. Raises ``ParameterError`` naming every wrong field, without its value."""
    if model is None:
        if values:
            raise ParameterError(
                f"The pipeline takes no parameters, but got {listed(map(repr, values))}. Leave it out."
            )
        return None
    names = _names(model)
    wrong = [
        f"{name}: there is no such parameter.{closest(name, names) or f' There are {listed(names)}.'}"
        for name in values
        if name not in names and model.model_config.get("extra") != "allow"
    ]
    parsed: BaseModel | None = None
    try:
        parsed = model.model_validate(dict(values))
    except ValidationError as error:
        wrong += [
            f"{'.'.join(map(str, problem['loc'])) or 'parameters'}: {_sentence(problem['msg'])}"
            for problem in error.errors(include_url=False, include_input=False)
            if problem["type"] != "extra_forbidden"
        ]
    if wrong:
        raise ParameterError("The parameters do not fit. " + " ".join(wrong))
    return parsed


def _names(model: type[BaseModel]) -> list[str]:
    return [name for field, info in model.model_fields.items() for name in {field, info.alias or field}]


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text if text.endswith(".") else f"{text}."
