"""What all request and answer bodies share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"),
    Field(description="A DNS label: lower-case letters, digits and hyphens, at most 63.", examples=["flights"]),
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), Field(description="SHA-256, hexadecimal.")]
Message = Annotated[
    str, StringConstraints(max_length=2000, pattern=r"^[^\x00]*$"), Field(description="A note for people.")
]
EpochNumber = Annotated[int, Field(ge=0, le=2**62)]


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("give a time zone, for example 2030-01-01T00:00:00Z")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("give a time between the years 1 and 9999") from None


UtcTime = Annotated[datetime, AfterValidator(_utc)]


class Body(BaseModel):
    """A request: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Item = TypeVar("Item")


class Page(Answer, Generic[Item]):
    """A part of a list. ``next_cursor`` is the ``cursor`` of the next part, null at the end."""

    items: list[Item]
    next_cursor: str | None
