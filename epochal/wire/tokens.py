from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

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


class Scope(StrEnum):
    """Scopes: read < operate < admin. Each is a role in the project ``default``."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    @property
    def role(self) -> Role:
        return _ROLES[self]

    @classmethod
    def of(cls, role: Role) -> Scope:
        """The largest scope that allows nothing that the role does not."""
        return max((scope for scope in cls if role.includes(scope.role)), key=list(cls).index)


_ROLES = {Scope.READ: Role.VIEWER, Scope.OPERATE: Role.AUTHOR, Scope.ADMIN: Role.ADMIN}


class CreateToken(Body):
    name: Name
    role: Role | None = Field(default=None, description="In the project of the token.")
    scope: Scope | None = Field(
        default=None, description="Instead of a role, as before there were roles: read is viewer, operate is author."
    )
    expires_at: UtcTime | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.role is None) == (self.scope is None):
            raise ValueError("give the role of the token (viewer, operator, author, admin), or its scope, not both")
        return self

    @property
    def granted(self) -> Role:
        """Raises ``ValueError`` where nothing is: such a request is not valid."""
        if self.role is not None:
            return self.role
        if self.scope is not None:
            return self.scope.role
        raise ValueError("there is no role")


class TokenAnswer(Answer):
    id: str
    name: str
    project: str = Field(default="default", description="Where it may anything.")
    roles: dict[str, Open[Role]] = Field(default_factory=dict, description="By name of project.")
    scope: Open[Scope] | None = Field(
        description="The largest scope that allows nothing that the role in `default` does not; null where it has none."
    )
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
