"""Sessions of browsers, and links that create one: rows that hold the hash of a secret, and what the rights are derived
from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, delete, or_, select, update
from sqlalchemy.orm import Session

from epochal.errors import NotFound, Unauthenticated
from epochal.service.catalog.models import SessionLink, Token, UserSession
from epochal.service.catalog.pages import paginate
from epochal.service.domain.pages import PageRequest, Part
from epochal.service.domain.secrets import SessionCode, SessionSecret, same

MOST_OF_A_CALLER = 100
"""Maximum number of sessions of one caller, and of its links. A further session replaces the least recently used one, a
further link the oldest one."""
LINK_NOT_VALID = (
    "The sign-in link is not valid: it was used, or has expired. `epochal console` and POST /v1/session/links create "
    "another one."
)


class SessionRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, row: UserSession) -> None:
        """Add the session, and end the least recently used ones of the caller above the maximum."""
        self._session.add(row)
        self._session.flush()
        mine = select(UserSession).where(UserSession.caller == row.caller, UserSession.id != row.id)
        newest = mine.order_by(UserSession.last_used_at.desc(), UserSession.id.desc())
        for surplus in self._session.scalars(newest.offset(MOST_OF_A_CALLER - 1)):
            self._session.delete(surplus)

    def find(self, id: str, moment: datetime, used_since: datetime) -> UserSession | None:
        """The session, unless it has ended by ``moment``; ``used_since``: the earliest last use of a session that has
        not ended."""
        row = self._session.get(UserSession, id)
        return None if row is None or not _is_alive(row, moment, used_since) else row

    def id_of(self, secret: SessionSecret) -> str | None:
        """Id of the session with this secret; ``None`` if there is none."""
        row = self._session.get(UserSession, secret.id)
        return None if row is None or not same(row.secret_sha256, secret.sha256) else row.id

    def note_use(self, id: str, moment: datetime) -> None:
        later = UserSession.id == id, UserSession.last_used_at < moment
        self._session.execute(update(UserSession).where(*later).values(last_used_at=moment))

    def end(self, id: str, caller: str | None) -> None:
        """Delete the session. ``caller``: its required owner; ``None``: any. Raises ``NotFound``."""
        row = self._session.get(UserSession, id, with_for_update=True)
        if row is None or caller not in (None, row.caller):
            raise NotFound(f"There is no session {id!r}.")
        self._session.delete(row)

    def page(self, page: PageRequest, caller: str | None, moment: datetime, used_since: datetime) -> Part:
        """Sessions that have not ended, newest first. ``caller``: their owner; ``None``: those of all callers."""
        alive = select(UserSession).where(~_has_ended(moment, used_since))
        query = alive if caller is None else alive.where(UserSession.caller == caller)
        return paginate(self._session, query, page, [UserSession.id], descending=True)

    def expire(self, moment: datetime, used_since: datetime, most: int) -> int:
        """Delete up to ``most`` sessions that have ended; their number."""
        ended = self.ended(moment, used_since, most)
        if ended:
            self._session.execute(delete(UserSession).where(UserSession.id.in_(ended)))
        return len(ended)

    def ended(self, moment: datetime, used_since: datetime, most: int) -> Sequence[str]:
        """Ids of up to ``most`` sessions that have ended."""
        return self._session.scalars(select(UserSession.id).where(_has_ended(moment, used_since)).limit(most)).all()


class SessionLinkRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, row: SessionLink) -> None:
        """Add the link, and delete the oldest ones of the caller above the maximum."""
        self._session.add(row)
        self._session.flush()
        mine = select(SessionLink).where(SessionLink.caller == row.caller, SessionLink.id != row.id)
        for surplus in self._session.scalars(mine.order_by(SessionLink.id.desc()).offset(MOST_OF_A_CALLER - 1)):
            self._session.delete(surplus)

    def find(self, code: SessionCode, moment: datetime, used_since: datetime) -> SessionLink:
        """The link, if it has not expired by ``moment``, and the session that created it has not ended. Raises
        ``Unauthenticated``."""
        row = self._session.scalars(select(SessionLink).where(SessionLink.code_sha256 == code.sha256)).one_or_none()
        if row is None or row.expires_at <= moment:
            raise Unauthenticated(LINK_NOT_VALID)
        sessions = SessionRepository(self._session)
        if row.session is not None and sessions.find(row.session, moment, used_since) is None:
            raise Unauthenticated(LINK_NOT_VALID)
        return row

    def use(self, id: str) -> None:
        """Delete the link. Of concurrent transactions, one succeeds; in the others raises ``Unauthenticated``."""
        row = self._session.get(SessionLink, id, with_for_update=True)
        if row is None:
            raise Unauthenticated(LINK_NOT_VALID)
        self._session.delete(row)

    def has_expired(self, moment: datetime) -> bool:
        return self._session.scalars(_expired_links(moment, 1)).first() is not None

    def expire(self, moment: datetime, most: int) -> int:
        """Delete up to ``most`` links that have expired; their number."""
        expired = self._session.scalars(_expired_links(moment, most)).all()
        if expired:
            self._session.execute(delete(SessionLink).where(SessionLink.id.in_(expired)))
        return len(expired)


def _expired_links(moment: datetime, most: int) -> Select[str]:
    return select(SessionLink.id).where(SessionLink.expires_at <= moment).limit(most)


def _is_alive(row: UserSession, moment: datetime, used_since: datetime) -> bool:
    return row.expires_at > moment and row.last_used_at > used_since


def _has_ended(moment: datetime, used_since: datetime) -> ColumnElement[bool]:
    revoked = and_(UserSession.token.is_not(None), ~select(Token.id).where(Token.id == UserSession.token).exists())
    return or_(UserSession.expires_at <= moment, UserSession.last_used_at <= used_since, revoked)
