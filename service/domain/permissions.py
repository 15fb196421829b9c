"""Callers, and the permissions that endpoints require."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from epochal.wire.projects import DEFAULT_PROJECT
from epochal.wire.tokens import Role


class Access(StrEnum):
    """The requirement of an endpoint: a role, none, the token of the driver named by its path, or a cluster's token for
    the pod of that driver."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    AUTHOR = "author"
    ADMIN = "admin"
    MEMBER = "member"
    """A role in any project."""
    PUBLIC = "public"
    DRIVER = "driver"
    POD = "pod"

    @property
    def role(self) -> Role | None:
        return None if self in _WITHOUT_A_ROLE else Role(self.value)


_WITHOUT_A_ROLE = frozenset({Access.MEMBER, Access.PUBLIC, Access.DRIVER, Access.POD})


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. ``id``: id of the token, or derived from a person's claims at the identity provider; ``name`` appears
    in ``created_by`` and in the audit log; ``roles``: by project name. ``person``: whether the caller is a person, not
    a token."""

    id: str
    name: str
    roles: Mapping[str, Role]
    person: bool = False

    def role_in(self, project: str) -> Role | None:
        """The role in a project. An administrator of ``default`` administers the installation and thereby every
        project."""
        if self.roles.get(DEFAULT_PROJECT) is Role.ADMIN:
            return Role.ADMIN
        return self.roles.get(project)

    def may(self, role: Role, project: str = DEFAULT_PROJECT) -> bool:
        own = self.role_in(project)
        return own is not None and own.includes(role)

    def described(self, project: str = DEFAULT_PROJECT) -> str:
        """A part of a sentence with the caller and its role."""
        own = self.role_in(project)
        has = "no role" if own is None else f"the role {own}"
        who = self.name if self.person else f"The token {self.name!r}"
        return f"{who} has {has} in the project {project!r}"


ANONYMOUS = Principal(id="anonymous", name="anonymous", roles={DEFAULT_PROJECT: Role.ADMIN})
"""The caller when authentication is off (loopback only)."""
