"""What a token may do, in the form that was there before roles."""

from __future__ import annotations

from enum import StrEnum

from epochal.wire.roles import Role


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
