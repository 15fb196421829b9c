"""Sessions of browsers: create, end; links that create one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from epochal.errors import NotFound, Unauthenticated
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import SessionLink, UserSession
from epochal.service.catalog.sessions import SessionLinkRepository, SessionRepository
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.logins import VerifiedLogin, session_end
from epochal.service.domain.permissions import Principal
from epochal.service.domain.secrets import SessionCode, SessionSecret
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
        ends. Raises ``Unauthenticated`` if the token has expired, or the link of the login has been used."""
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
            if login.link is not None:
                SessionLinkRepository(session).use(login.link)
            repository = SessionRepository(session)
            repository.add(row)
            if (former := self._former(repository, replaced)) is not None:
                repository.end(former, None)
        self._authenticated.forget()
        return secret, KnownSession(secret.id, login.principal, secret.csrf_token, moment, expires_at)

    def create_link(self, login: VerifiedLogin, duration: timedelta) -> tuple[SessionCode, datetime]:
        """Create a link that a browser can use once, instead of the token, and its end."""
        return self._add_link(login.principal, login.token, login.claims, None, login.expires_at, duration)

    def create_link_of_session(self, known: KnownSession, duration: timedelta) -> tuple[SessionCode, datetime]:
        """Create a link with the rights of a session. The session that it creates ends with this one's time. Raises
        ``Unauthenticated`` if the session has ended."""
        moment = now()
        with self._database.reading() as session:
            row = SessionRepository(session).find(known.id, moment, moment - self._sessions.longest_pause)
        if row is None:
            raise Unauthenticated("The session has ended. Log in again.")
        return self._add_link(known.principal, row.token, row.claims, row.id, known.expires_at, duration)

    def _add_link(
        self,
        principal: Principal,
        token: str | None,
        claims: Mapping[str, Any] | None,
        session_id: str | None,
        ends: datetime | None,
        duration: timedelta,
    ) -> tuple[SessionCode, datetime]:
        code, moment = SessionCode.make(), now()
        expires_at = moment + duration if ends is None else min(moment + duration, ends)
        row = SessionLink(
            id=new_id(),
            code_sha256=code.sha256,
            caller=principal.id,
            token=token,
            claims=None if claims is None else dict(claims),
            session=session_id,
            created_at=moment,
            expires_at=expires_at,
            session_expires_at=ends,
        )
        with self._database.writing() as session:
            SessionLinkRepository(session).add(row)
        return code, expires_at

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
