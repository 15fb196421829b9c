"""Lists of the sessions of browsers."""

from __future__ import annotations

from epochal.service.catalog.database import Database
from epochal.service.catalog.sessions import SessionRepository
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest
from epochal.service.domain.permissions import Principal
from epochal.service.domain.setting_sections import Sessions
from epochal.wire.bodies import Page
from epochal.wire.sessions import ListedSession
from epochal.wire.tokens import Role


class SessionQueries:
    def __init__(self, database: Database, sessions: Sessions) -> None:
        self._database = database
        self._sessions = sessions

    def page(self, page: PageRequest, caller: Principal, current: str | None) -> Page[ListedSession]:
        """Sessions of the caller, or of everyone for administrators of the installation, newest first. ``current``: id
        of the session of the request."""
        moment = now()
        owner = None if caller.may(Role.ADMIN) else caller.id
        with self._database.reading() as session:
            repository = SessionRepository(session)
            part = repository.page(page, owner, moment, moment - self._sessions.longest_pause)
            items = [
                ListedSession(
                    id=row.id,
                    name=row.name,
                    person=row.token is None,
                    address=row.address,
                    created_at=row.created_at,
                    last_used_at=row.last_used_at,
                    expires_at=row.expires_at,
                    current=row.id == current,
                )
                for row in part.rows
            ]
        return Page(items=items, next_cursor=part.next_cursor)
