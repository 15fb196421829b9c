"""A pytest plugin: ``model_copy`` refuses values of unknown fields.

Pydantic stores them in the copy without validation and without effect. A test that sets a field under its former name
would then test the default. Models of pyiceberg are left alone: it copies metadata with fields of other versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_copy = BaseModel.model_copy


def _checked(self: BaseModel, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> BaseModel:
    unknown = set(update or ()) - set(type(self).model_fields)
    library = type(self).__module__.startswith("pyiceberg.")
    if unknown and self.model_config.get("extra") != "allow" and not library:
        raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
    return _copy(self, update=update, deep=deep)


def pytest_configure() -> None:
    BaseModel.model_copy = _checked  # type: ignore[method-assign,assignment]
