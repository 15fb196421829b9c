from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from epochal.wire.bodies import Answer, Body, Name, Open, UtcTime


class Role(StrEnum):
    """Each role includes those before it. An ``author`` submits code, which is code execution."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    AUTHOR = "author"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class CreateToken(Body):
    name: Name
    role: Role = Field(description="Role in the token's project.")
    expires_at: UtcTime | None = None


class TokenAnswer(Answer):
    id: str
    name: str
    project: str = Field(default="default", description="Where it may anything.")
    roles: dict[str, Open[Role]] = Field(default_factory=dict, description="By name of project.")
    created_at: datetime
    expires_at: datetime | None


class NewTokenAnswer(TokenAnswer):
    token: str | None = Field(description="The token itself, said once: a repeated request answers null.")


class RotateToken(Body):
    expires_at: UtcTime | None = Field(default=None, description="Without: as that of the token that is replaced.")


class RotatedTokenAnswer(NewTokenAnswer):
    file: str | None = Field(
        description="The admin token file of this control plane, when the old token was in it: it holds the new one."
    )
