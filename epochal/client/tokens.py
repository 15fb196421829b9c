"""Access tokens, and the audit log. Both are for administrators."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from epochal.client.models import AuditRecord, NewToken, RotatedToken, Token
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.wire.bodies import read

Role = Literal["viewer", "operator", "author", "admin"]
Scope = Literal["read", "operate", "admin"]


class Tokens:
    """``client.tokens``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, name: str, scope: Scope | None = None, expires_at: datetime | None = None, *, role: Role = "viewer"
    ) -> NewToken:
        """A new token with a role in the project ``default``. Its text is in this answer only; the control plane keeps
        a hash. ``scope``: instead of a role, as before there were roles."""
        body = {"name": name, "expires_at": None if expires_at is None else expires_at.isoformat()}
        what = {"role": role} if scope is None else {"scope": scope}
        return read(NewToken, self._transport.post("/v1/tokens", body | what))

    def list(self, limit: int | None = None) -> list[Token]:
        return self._transport.pages("/v1/tokens", Token, limit)

    def rotate(self, id: str, expires_at: datetime | None = None) -> RotatedToken:
        """A new token with the name and roles of token ``id``, which is refused from now on."""
        body = {"expires_at": None if expires_at is None else expires_at.isoformat()}
        return read(RotatedToken, self._transport.post(path("tokens", id, "rotate"), body))

    def delete(self, id: str) -> None:
        """The token is refused from now on, also after a restart."""
        self._transport.delete(path("tokens", id))


class Audit:
    """``client.audit``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, limit: int | None = 100) -> list[AuditRecord]:
        """Newest first."""
        return self._transport.pages("/v1/audit", AuditRecord, limit)
