"""Sessions of browsers: create, end."""

from __future__ import annotations

from epochal.errors import NotFound, Unauthenticated
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import UserSession
from epochal.service.catalog.sessions import SessionRepository
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.logins import VerifiedLogin, session_end
from epochal.service.domain.permissions import Principal
from epochal.service.domain.secrets import SessionSecret
from epochal.service.domain.setting_sections import Sessions
from epochal.service.runtime.browser_sessions import BrowserSessions, KnownSession
from epochal.wire.tokens import Role


class SessionService:
    def __init__(self, database: Database, authenticated: BrowserSessions, sessions: Sessions) -> None:
        self._database = database
        self._authenticated = authenticated
        self._sessions = sessions

    def create(
        self, login: VerifiedLogin, address: str | None, replaced: str | None
    ) -> tuple[SessionSecret, KnownSession]:
        """Create a session with a new secret. ``replaced``: value of the cookie that the browser has, whose session
        ends. Raises ``Unauthenticated`` if the token has expired."""
        moment = now()
        expires_at = session_end(login, moment, self._sessions)
        if expires_at <= moment:
            raise Unauthenticated("The token has expired; fetch a new one.")
        secret = SessionSecret.make(new_id())
        row = UserSession(
            id=secret.id,
            secret_sha256=secret.sha256,
            caller=login.principal.id,
            name=login.principal.name,
            token=login.token,
            claims=None if login.claims is None else dict(login.claims),
            address=address,
            created_at=moment,
            last_used_at=moment,
            expires_at=expires_at,
        )
        with self._database.writing() as session:
            repository = SessionRepository(session)
            repository.add(row)
            if (former := self._former(repository, replaced)) is not None:
                repository.end(former, None)
        self._authenticated.forget()
        return secret, KnownSession(secret.id, login.principal, secret.csrf_token, moment, expires_at)

    def end(self, id: str, caller: Principal) -> None:
        """End a session of the caller; administrators of the installation may end all. Raises ``NotFound``, also for
        sessions of others."""
        with self._database.writing() as session:
            SessionRepository(session).end(id, None if caller.may(Role.ADMIN) else caller.id)
        self._authenticated.forget()

    def end_own(self, known: KnownSession) -> None:
        """End the session of the request. It may have ended already."""
        try:
            self.end(known.id, known.principal)
        except NotFound:
            self._authenticated.forget()

    def _former(self, repository: SessionRepository, cookie: str | None) -> str | None:
        secret = None if cookie is None else SessionSecret.parse(cookie)
        return None if secret is None else repository.id_of(secret)
