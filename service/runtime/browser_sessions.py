"""Authentication of browsers by the secret in the cookie of their session."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.concurrency import run_in_threadpool

from epochal.errors import EpochalError, Unauthenticated
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import SessionLink, UserSession
from epochal.service.catalog.sessions import LINK_NOT_VALID, SessionLinkRepository, SessionRepository
from epochal.service.catalog.tokens import TokenRepository, roles_of
from epochal.service.catalog.types import now
from epochal.service.domain.identity import OidcSettings
from epochal.service.domain.logins import VerifiedLogin, person_of_session
from epochal.service.domain.permissions import Principal
from epochal.service.domain.secrets import SessionCode, SessionSecret, same
from epochal.service.domain.setting_sections import Sessions

log = logging.getLogger("epochal.sessions")

_NOTED_SECONDS = 60.0
"""Maximum time between two records of the use of a session."""
_REMEMBERED_AT_MOST = 10_000
_ENDED = "The session is not valid, or has ended. Log in again."


@dataclass(frozen=True, slots=True)
class KnownSession:
    """A session that has not ended, as of a few seconds ago."""

    id: str
    principal: Principal
    csrf_token: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class _Remembered:
    session: KnownSession
    until: float


class BrowserSessions:
    """Maps the value of a cookie to a session. The rights are looked up with the session, so that it ends with its
    token. ``seconds``: time for which a result is cached, as for tokens."""

    def __init__(self, database: Database, sessions: Sessions, oidc: OidcSettings | None, seconds: float) -> None:
        self._database = database
        self._oidc = oidc
        self._longest_pause = sessions.longest_pause
        self._seconds = seconds
        self._known: dict[str, _Remembered] = {}
        self._noted_after = min(timedelta(seconds=_NOTED_SECONDS), sessions.longest_pause / 10)

    async def user(self, cookie: str) -> KnownSession:
        """Raises ``Unauthenticated``."""
        known = self._known
        remembered = known.get(cookie)
        if remembered is None or remembered.until < time.monotonic():
            session = await run_in_threadpool(self._look_up, cookie)
            remembered = _Remembered(session, time.monotonic() + self._seconds)
            if len(known) >= _REMEMBERED_AT_MOST:
                known.clear()
            known[cookie] = remembered
        if remembered.session.expires_at <= now():
            raise Unauthenticated(_ENDED)
        return remembered.session

    async def by_link(self, code: SessionCode) -> VerifiedLogin:
        """The login by a link that has not been used. Raises ``Unauthenticated``."""
        return await run_in_threadpool(self._by_link, code)

    def forget(self) -> None:
        """Clear the cache, after a session or token was deleted."""
        self._known = {}

    def _look_up(self, cookie: str) -> KnownSession:
        secret, moment = SessionSecret.parse(cookie), now()
        if secret is None:
            raise Unauthenticated(_ENDED)
        with self._database.reading() as session:
            row = SessionRepository(session).find(secret.id, moment, moment - self._longest_pause)
            if row is None or not same(row.secret_sha256, secret.sha256):
                raise Unauthenticated(_ENDED)
            principal, of_token = self._rights(row, TokenRepository(session))
        if moment - row.last_used_at >= self._noted_after:
            self._note_use(row.id, moment)
        expires_at = row.expires_at if of_token is None else min(row.expires_at, of_token)
        return KnownSession(row.id, principal, secret.csrf_token, row.created_at, expires_at)

    def _by_link(self, code: SessionCode) -> VerifiedLogin:
        moment = now()
        with self._database.reading() as session:
            row = SessionLinkRepository(session).find(code, moment, moment - self._longest_pause)
            try:
                principal, of_token = self._rights(row, TokenRepository(session))
            except Unauthenticated as error:
                raise Unauthenticated(LINK_NOT_VALID) from error
        ends = [end for end in (row.session_expires_at, of_token) if end is not None]
        expires_at = min(ends) if ends else None
        if expires_at is not None and expires_at <= moment:
            raise Unauthenticated(LINK_NOT_VALID)
        return VerifiedLogin(principal, row.token, row.claims, expires_at, row.id)

    def _rights(self, row: UserSession | SessionLink, tokens: TokenRepository) -> tuple[Principal, datetime | None]:
        """The principal, as for a request with the token itself, and the end of the token."""
        if row.token is None:
            return person_of_session(row.claims or {}, self._oidc), None
        token = tokens.find(row.token)
        if token is None:
            raise Unauthenticated(_ENDED)
        return Principal(id=token.id, name=token.name, roles=roles_of(token)), token.expires_at

    def _note_use(self, id: str, moment: datetime) -> None:
        try:
            with self._database.writing() as session:
                SessionRepository(session).note_use(id, moment)
        except EpochalError as error:
            # The next request tries again; the session ends early only if none succeeds.
            log.warning("the use of session %s was not stored: %s", id, error)
