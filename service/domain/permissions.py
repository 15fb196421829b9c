"""Who is calling, and what an endpoint needs of a caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from epochal.wire.projects import DEFAULT_PROJECT
from epochal.wire.tokens import Role


class Access(StrEnum):
    """What an endpoint needs: a role, nothing, the token of the driver that its path names, or what a cluster has made
    for the pod of that driver."""

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
    """Who is calling. ``id`` is the token's, or made of what a person is at their identity provider; ``name`` stands in
    ``created_by`` and in the audit log; ``roles`` are by name of project. ``person``: it is one, and not a token."""

    id: str
    name: str
    roles: Mapping[str, Role]
    person: bool = False

    def role_in(self, project: str) -> Role | None:
        """An administrator of ``default`` is one of the installation, and so of every project."""
        if self.roles.get(DEFAULT_PROJECT) is Role.ADMIN:
            return Role.ADMIN
        return self.roles.get(project)

    def may(self, role: Role, project: str = DEFAULT_PROJECT) -> bool:
        own = self.role_in(project)
        return own is not None and own.includes(role)

    def described(self, project: str = DEFAULT_PROJECT) -> str:
        """As it stands in a sentence: who it is, and what it may there."""
        own = self.role_in(project)
        has = "no role" if own is None else f"the role {own}"
        who = self.name if self.person else f"The token {self.name!r}"
        return f"{who} has {has} in the project {project!r}"


ANONYMOUS = Principal(id="anonymous", name="anonymous", roles={DEFAULT_PROJECT: Role.ADMIN})
"""Everybody, where authentication is off (loopback only)."""
