from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import NameTaken, NotFound
from epochal.service.catalog.models import RevokedToken, Token
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part


class TokenRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def check_free(self, name: str) -> None:
        if self._session.scalars(select(Token.id).where(Token.name == name)).first() is not None:
            raise NameTaken(f"There is a token {name!r} already; choose another name.")

    def add(self, token: Token) -> None:
        self._session.add(token)
        self._session.flush()

    def get(self, id: str) -> Token:
        """Locked until the transaction ends. Raises ``NotFound``."""
        row = self._session.get(Token, id, with_for_update=True)
        if row is None:
            raise NotFound(f"There is no token {id!r}.")
        return row

    def page(self, page: PageRequest) -> Part:
        """By name."""
        return paginate(self._session, select(Token), page, [Token.name])

    def revoke(self, row: Token, by: str) -> None:
        """For good: the id is remembered, so that the same token is not seeded again from a file."""
        self._session.add(RevokedToken(id=row.id, name=row.name, revoked_at=now(), revoked_by=by))
        self._session.delete(row)
        self._session.flush()
