"""Who is calling, and what an endpoint needs of a caller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from epochal.wire.scopes import Scope


class Access(StrEnum):
    """What an endpoint needs: a scope, nothing, or the token of the driver that its path names."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"
    PUBLIC = "public"
    DRIVER = "driver"

    @property
    def scope(self) -> Scope | None:
        return Scope(self.value) if self in (Access.READ, Access.OPERATE, Access.ADMIN) else None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling. ``id`` is the token's; ``name`` stands in ``created_by`` and in the audit log."""

    id: str
    name: str
    scope: Scope


ANONYMOUS = Principal(id="anonymous", name="anonymous", scope=Scope.ADMIN)
"""Everybody, where authentication is off (loopback only)."""
