"""Access tokens and roles."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from epochal.wire.bodies import Answer, Body, Name, Open, UtcTime


class Role(StrEnum):
    """Each role includes the preceding ones. An ``author`` submits code, and can thereby execute code."""

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
    project: str = Field(default="default", description="Project of the token.")
    roles: dict[str, Open[Role]] = Field(default_factory=dict, description="Roles by project.")
    created_at: datetime
    expires_at: datetime | None


class NewTokenAnswer(TokenAnswer):
    token: str | None = Field(description="The token; returned once, a repeated request returns null.")


class RotateToken(Body):
    expires_at: UtcTime | None = Field(
        default=None, description="Expiry; the default is the expiry of the replaced token."
    )


class RotatedTokenAnswer(NewTokenAnswer):
    file: str | None = Field(
        description="Admin token file of this control plane, if it contained the old token; it now contains "
        "the new one."
    )
