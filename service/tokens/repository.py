from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import NameTaken, NotFound
from epochal.service.catalog.models import Token
from epochal.service.pagination import PageRequest, Part, paginate


class TokenRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def check_free(self, name: str) -> None:
        if self._session.scalars(select(Token.id).where(Token.name == name)).first() is not None:
            raise NameTaken(f"There is a token {name!r} already; choose another name.")

    def add(self, token: Token) -> None:
        self._session.add(token)
        self._session.flush()

    def page(self, page: PageRequest) -> Part:
        """By name."""
        return paginate(self._session, select(Token), page, [Token.name])

    def delete(self, id: str) -> None:
        row = self._session.get(Token, id)
        if row is None:
            raise NotFound(f"There is no token {id!r}.")
        self._session.delete(row)
