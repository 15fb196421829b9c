"""Who is calling, and what an endpoint needs of a caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from epochal.wire.roles import Role

DEFAULT_PROJECT = "default"
"""Everything belongs to this project."""


class Access(StrEnum):
    """What an endpoint needs: a role, nothing, the token of the driver that its path names, or what a cluster has made
    for the pod of that driver."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    AUTHOR = "author"
    ADMIN = "admin"
    PUBLIC = "public"
    DRIVER = "driver"
    POD = "pod"

    @property
    def role(self) -> Role | None:
        return None if self in (Access.PUBLIC, Access.DRIVER, Access.POD) else Role(self.value)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling. ``id`` is the token's, or made of what a person is at their identity provider; ``name`` stands in
    ``created_by`` and in the audit log; ``roles`` are by name of project. ``person``: it is one, and not a token."""

    id: str
    name: str
    roles: Mapping[str, Role]
    person: bool = False

    def may(self, role: Role, project: str = DEFAULT_PROJECT) -> bool:
        own = self.roles.get(project)
        return own is not None and own.includes(role)

    @property
    def described(self) -> str:
        """As it stands in a sentence: who it is, and what it may."""
        own = self.roles.get(DEFAULT_PROJECT)
        has = "no role" if own is None else f"the role {own}"
        who = self.name if self.person else f"The token {self.name!r}"
        return f"{who} has {has} in the project {DEFAULT_PROJECT!r}"


ANONYMOUS = Principal(id="anonymous", name="anonymous", roles={DEFAULT_PROJECT: Role.ADMIN})
"""Everybody, where authentication is off (loopback only)."""
