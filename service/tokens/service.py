from __future__ import annotations

from epochal.errors import InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.identifiers import new_id
from epochal.service.catalog.models import Token
from epochal.service.catalog.types import now
from epochal.service.pagination import PageRequest
from epochal.service.schema import Page
from epochal.service.security.authenticator import Authenticator
from epochal.service.security.scopes import Scope
from epochal.service.security.secrets import UserToken
from epochal.service.tokens.repository import TokenRepository
from epochal.service.tokens.schemas import CreateToken, NewTokenAnswer, TokenAnswer


class TokenService:
    def __init__(self, database: Database, authenticator: Authenticator) -> None:
        self._database = database
        self._authenticator = authenticator

    def create(self, request: CreateToken, by: str) -> NewTokenAnswer:
        """The token itself is in this answer only. Raises ``NameTaken``."""
        if request.expires_at is not None and request.expires_at <= now():
            raise InvalidInput("expires_at is in the past.")
        token = UserToken.make(new_id())
        row = Token(
            id=token.id,
            name=request.name,
            scope=request.scope.value,
            secret_sha256=token.sha256,
            created_at=now(),
            created_by=by,
            expires_at=request.expires_at,
        )
        with self._database.writing() as session:
            repository = TokenRepository(session)
            repository.check_free(request.name)
            repository.add(row)
        return NewTokenAnswer(**_answer(row).model_dump(), token=token.text)

    def page(self, page: PageRequest) -> Page[TokenAnswer]:
        with self._database.reading() as session:
            part = TokenRepository(session).page(page)
            return Page(items=[_answer(row) for row in part.rows], next_cursor=part.next_cursor)

    def delete(self, id: str) -> None:
        with self._database.writing() as session:
            TokenRepository(session).delete(id)
        self._authenticator.forget()


def _answer(row: Token) -> TokenAnswer:
    return TokenAnswer(
        id=row.id, name=row.name, scope=Scope(row.scope), created_at=row.created_at, expires_at=row.expires_at
    )
