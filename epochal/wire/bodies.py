"""Common parts of request and answer bodies.

Adjacent versions of Epochal are compatible. Requests with unknown fields are refused. :func:`read` ignores unknown
fields of answers and reads unknown kinds as ``other``. A field that a later version adds to an answer has a default,
for answers of earlier versions.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from epochal.errors import EpochalError

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"),
    Field(description="A DNS label: lower-case letters, digits and hyphens, at most 63.", examples=["flights"]),
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), Field(description="SHA-256, hexadecimal.")]
Message = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00]*$"), Field(description="Free text.")]
EpochNumber = Annotated[int, Field(ge=0, le=2**62)]


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("give a time zone, for example 2030-01-01T00:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("give a time between the years 1 and 9999") from None


UtcTime = Annotated[datetime, AfterValidator(_utc)]


_READING = {"reading": True}
"""Validation context in which unknown kinds are read as ``other``."""


class _OtherWhereUnknown:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(_known_or_other, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema of answers does not contain ``other``."""
        return handler(schema["schema"]["choices"][0])


def _known_or_other(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return validate(value)
    except ValidationError:
        if info.context == _READING and isinstance(value, str):
            return "other"
        raise


Known = TypeVar("Known")
Open = Annotated[Known | Literal["other"], _OtherWhereUnknown()]
"""A kind or state that later versions may extend. Unknown values are read as ``other``."""


class Body(BaseModel):
    """A request body. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


ALL_FIELDS = ConfigDict(json_schema_serialization_defaults_required=True)
"""Configuration of answers that always contain all fields; defaults apply to answers of earlier versions."""


Item = TypeVar("Item")


class Page(Answer, Generic[Item]):
    """A page of a list. ``next_cursor``: ``cursor`` of the next page; null for the last page."""

    items: list[Item]
    next_cursor: str | None


Model = TypeVar("Model", bound=BaseModel)


class UnreadableAnswer(EpochalError):
    """An answer cannot be read by this version."""

    slug = "unreadable-answer"


def read(model: type[Model], answer: Any) -> Model:
    """Validate an answer of a control plane, possibly of a later version. Raises ``UnreadableAnswer``."""
    try:
        return model.model_validate(answer, extra="ignore", context=_READING)
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise UnreadableAnswer(
            f"This version cannot read the control plane's answer as {model.__name__} ({places}). Install the "
            f"version of "
            "the control plane. If a driver reports this error, restart its application."
        ) from error
