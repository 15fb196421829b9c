"""Authentication of callers. Tokens are looked up in the catalog, or verified with the keys of the identity provider
that signed them. Results are cached for seconds to keep authentication out of the cost of look-ups."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from epochal.errors import Unauthenticated
from epochal.service.catalog.database import Database
from epochal.service.catalog.tokens import TokenRepository, roles_of
from epochal.service.catalog.types import now
from epochal.service.domain.identity import OidcSettings
from epochal.service.domain.logins import VerifiedLogin
from epochal.service.domain.permissions import ANONYMOUS, Principal
from epochal.service.domain.secrets import SessionCode, UserToken, same
from epochal.service.domain.setting_sections import Sessions
from epochal.service.runtime.browser_sessions import BrowserSessions
from epochal.wire.tokens import Role

if TYPE_CHECKING:
    from epochal.service.runtime.person_tokens import PersonTokens

REMEMBERED_SECONDS = 3.0
"""Maximum time for which a token remains valid after it was deleted through another control plane process."""
_RENEWED_SECONDS = 1.0
"""Time before the end of the cache entry at which a token in use is verified again, by one request of many."""
_REMEMBERED_AT_MOST = 10_000
_VERIFIED_AT_ONCE = 4
"""Number of threads that verify people's tokens. They may block on the issuer, and therefore do not use the general
thread pool."""

_MISSING = "A token is needed; send it as 'Authorization: Bearer <token>'."
_WRONG = "The token is not valid, or has expired; ask for a new one (epochal tokens create)."


@dataclass(frozen=True, slots=True)
class _Remembered:
    principal: Principal
    expires_at: datetime | None
    until: float


class Authenticator:
    """Maps an ``Authorization`` header to a :class:`Principal`. Raises ``Unauthenticated``."""

    def __init__(
        self,
        database: Database,
        enabled: bool = True,
        oidc: OidcSettings | None = None,
        sessions: Sessions = Sessions(),
    ) -> None:
        self._database = database
        self.sessions = BrowserSessions(database, sessions, oidc, REMEMBERED_SECONDS)
        self._people = None if oidc is None else _people(oidc)
        self._verifying = ThreadPoolExecutor(_VERIFIED_AT_ONCE, "people")
        self.enabled = enabled
        self._users: dict[str, _Remembered] = {}
        self._headers: dict[tuple[bytes, str], _Remembered] = {}
        """Principals that may read, by header and project."""
        self._to_renew: set[str] = set()

    async def user(self, authorization: str | None) -> Principal:
        """The bearer of a token that was created through ``/v1/tokens``, or by the identity provider for a person.

        Raises ``IssuerUnavailable`` while the token cannot be verified.
        """
        if not self.enabled:
            return ANONYMOUS
        text, users = bearer(authorization), self._users
        remembered = users.get(text)
        if remembered is None or remembered.until < time.monotonic() or text in self._to_renew:
            self._to_renew.discard(text)
            remembered = await self._find(text)
            if len(users) >= _REMEMBERED_AT_MOST:
                users.clear()
            users[text] = remembered
        if remembered.expires_at is not None and remembered.expires_at <= now():
            raise Unauthenticated(_WRONG)
        return remembered.principal

    async def login(self, authorization: str | None) -> VerifiedLogin:
        """Like :meth:`user`, for a session: always verified now. The code of a link is also accepted."""
        text = bearer(authorization)
        if (code := SessionCode.parse(text)) is not None:
            return await self.sessions.by_link(code)
        if self._people is None or not _is_signed(text):
            login = await run_in_threadpool(self._login, text)
        else:
            login = await asyncio.get_running_loop().run_in_executor(self._verifying, self._people.login, text)
        if login.expires_at is not None and login.expires_at <= now():
            raise Unauthenticated(_WRONG)
        return login

    def may_read(self, authorization: bytes, project: str) -> bool:
        """``True`` if the cache has a principal for this header, as bytes, that may read in the project. Otherwise the
        caller uses :meth:`user`."""
        headers, reader = self._headers, (authorization, project)
        known = headers.get(reader)
        if known is None:
            known = self._users.get(bearer(authorization.decode("latin-1")))
            if known is None or not known.principal.may(Role.VIEWER, project):
                return False
            if len(headers) >= _REMEMBERED_AT_MOST:
                headers.clear()
            headers[reader] = known
        left = known.until - time.monotonic()
        if left >= _RENEWED_SECONDS and known.expires_at is None:
            return True
        return self._is_still_good(reader, known, left)

    def _is_still_good(self, reader: tuple[bytes, str], known: _Remembered, left: float) -> bool:
        if left < _RENEWED_SECONDS:
            # The first request verifies the token again; others use the cached entry while it is valid.
            self._headers.pop(reader, None)
            authorization, _ = reader
            text = bearer(authorization.decode("latin-1"))
            if text not in self._to_renew:
                self._to_renew.add(text)
                return False
        return left >= 0 and (known.expires_at is None or known.expires_at > now())

    def forget(self) -> None:
        """Clear the caches, after a token or session was deleted."""
        # New objects, in this order: a verification that is still running stores its result in the old ones, which are
        # no longer read.
        self._users = {}
        self._headers = {}
        self._to_renew = set()
        self.sessions.forget()

    async def _find(self, text: str) -> _Remembered:
        if self._people is None or not _is_signed(text):
            return await run_in_threadpool(self._look_up, text)
        loop = asyncio.get_running_loop()
        principal, expires_at = await loop.run_in_executor(self._verifying, self._people.identity, text)
        return _Remembered(principal, expires_at, time.monotonic() + REMEMBERED_SECONDS)

    def _look_up(self, text: str) -> _Remembered:
        login = self._login(text)
        return _Remembered(login.principal, login.expires_at, time.monotonic() + REMEMBERED_SECONDS)

    def _login(self, text: str) -> VerifiedLogin:
        token = UserToken.parse(text)
        if token is None:
            raise Unauthenticated(_WRONG)
        with self._database.reading() as session:
            row = TokenRepository(session).find(token.id)
        if row is None or not same(row.secret_sha256, token.sha256):
            raise Unauthenticated(_WRONG)
        principal = Principal(id=row.id, name=row.name, roles=roles_of(row))
        return VerifiedLogin(principal, row.id, None, row.expires_at)


def _is_signed(text: str) -> bool:
    """Epochal's own tokens contain no dot, signed tokens two."""
    return text.count(".") == 2


def _people(oidc: OidcSettings) -> PersonTokens:
    # Load the signature library only where it is needed.
    from epochal.service.runtime.person_tokens import PersonTokens

    return PersonTokens(oidc)


def bearer(authorization: str | None) -> str:
    """The token in an ``Authorization`` header. Raises ``Unauthenticated``."""
    if authorization is None:
        raise Unauthenticated(_MISSING)
    kind, _, text = authorization.partition(" ")
    if kind.lower() != "bearer" or not text.strip():
        raise Unauthenticated(_MISSING)
    return text.strip()
