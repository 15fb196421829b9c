"""Authentication of browsers by the secret in the cookie of their session."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.concurrency import run_in_threadpool

from epochal.errors import EpochalError, Unauthenticated
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import UserSession
from epochal.service.catalog.sessions import SessionRepository
from epochal.service.catalog.tokens import TokenRepository, roles_of
from epochal.service.catalog.types import now
from epochal.service.domain.identity import OidcSettings
from epochal.service.domain.logins import person_of_session
from epochal.service.domain.permissions import Principal
from epochal.service.domain.secrets import SessionSecret, same
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
            principal, expires_at = self._rights(row, TokenRepository(session))
        if moment - row.last_used_at >= self._noted_after:
            self._note_use(row.id, moment)
        return KnownSession(row.id, principal, secret.csrf_token, row.created_at, expires_at)

    def _rights(self, row: UserSession, tokens: TokenRepository) -> tuple[Principal, datetime]:
        """The principal, as for a request with the token itself, and the end of the session."""
        if row.token is None:
            return person_of_session(row.claims or {}, self._oidc), row.expires_at
        token = tokens.find(row.token)
        if token is None:
            raise Unauthenticated(_ENDED)
        expires_at = row.expires_at if token.expires_at is None else min(row.expires_at, token.expires_at)
        return Principal(id=token.id, name=token.name, roles=roles_of(token)), expires_at

    def _note_use(self, id: str, moment: datetime) -> None:
        try:
            with self._database.writing() as session:
                SessionRepository(session).note_use(id, moment)
        except EpochalError as error:
            # The next request tries again; the session ends early only if none succeeds.
            log.warning("the use of session %s was not stored: %s", id, error)
