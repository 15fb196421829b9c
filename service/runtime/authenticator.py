"""Who is calling? Tokens are looked up in the catalog, and remembered for seconds: look-ups should not pay for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from starlette.concurrency import run_in_threadpool

from epochal.errors import Unauthenticated
from epochal.service.catalog.database import Database
from epochal.service.catalog.tokens import TokenRepository
from epochal.service.catalog.types import now
from epochal.service.domain.permissions import ANONYMOUS, Principal
from epochal.service.domain.secrets import UserToken, same
from epochal.wire.scopes import Scope

REMEMBERED_SECONDS = 3.0
"""A token that was deleted through another control plane process is good for so long at most."""
_REMEMBERED_AT_MOST = 10_000

_MISSING = "A token is needed; send it as 'Authorization: Bearer <token>'."
_WRONG = "The token is not valid, or has expired; ask for a new one (epochal tokens create)."


@dataclass(frozen=True, slots=True)
class _Remembered:
    principal: Principal
    expires_at: datetime | None
    until: float


class Authenticator:
    """Maps an ``Authorization`` header to a :class:`Principal`. Raises ``Unauthenticated``."""

    def __init__(self, database: Database, enabled: bool = True) -> None:
        self._database = database
        self.enabled = enabled
        self._users: dict[str, _Remembered] = {}

    async def user(self, authorization: str | None) -> Principal:
        """The bearer of a token that was made through ``/v1/tokens``."""
        if not self.enabled:
            return ANONYMOUS
        text = bearer(authorization)
        remembered = self._users.get(text)
        if remembered is None or remembered.until < time.monotonic():
            remembered = await run_in_threadpool(self._look_up, text)
            if len(self._users) >= _REMEMBERED_AT_MOST:
                self._users.clear()
            self._users[text] = remembered
        if remembered.expires_at is not None and remembered.expires_at <= now():
            raise Unauthenticated(_WRONG)
        return remembered.principal

    def forget(self) -> None:
        """A token was deleted: ask the catalog again."""
        self._users.clear()

    def _look_up(self, text: str) -> _Remembered:
        token = UserToken.parse(text)
        if token is None:
            raise Unauthenticated(_WRONG)
        with self._database.reading() as session:
            row = TokenRepository(session).find(token.id)
        if row is None or not same(row.secret_sha256, token.sha256):
            raise Unauthenticated(_WRONG)
        principal = Principal(id=row.id, name=row.name, scope=Scope(row.scope))
        return _Remembered(principal, row.expires_at, time.monotonic() + REMEMBERED_SECONDS)


def bearer(authorization: str | None) -> str:
    """The token in an ``Authorization`` header. Raises ``Unauthenticated``."""
    if authorization is None:
        raise Unauthenticated(_MISSING)
    kind, _, text = authorization.partition(" ")
    if kind.lower() != "bearer" or not text.strip():
        raise Unauthenticated(_MISSING)
    return text.strip()
