from __future__ import annotations

from epochal.errors import EnvironmentProblem, InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Token
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.tokens import AdminTokenFile, TokenRepository, token_answer
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.secrets import UserToken
from epochal.service.runtime.authenticator import Authenticator
from epochal.wire.projects import DEFAULT_PROJECT, new_name
from epochal.wire.tokens import CreateToken, NewTokenAnswer, RotatedTokenAnswer, RotateToken, Scope


class TokenService:
    def __init__(self, database: Database, authenticator: Authenticator, admin: AdminTokenFile) -> None:
        self._database = database
        self._authenticator = authenticator
        self._admin = admin

    def create(self, request: CreateToken, project: str, by: str) -> NewTokenAnswer:
        """The token itself is in this answer only. Raises ``NameTaken``, ``NotFound``, ``InvalidInput``."""
        if request.expires_at is not None and request.expires_at <= now():
            raise InvalidInput("expires_at is in the past.")
        token = UserToken.make(new_id())
        row = Token(
            id=token.id,
            name=new_name(project, request.name),
            project=project,
            # A control plane of an earlier version goes by the scope, and knows one project only.
            scope=(Scope.of(request.granted) if project == DEFAULT_PROJECT else Scope.READ).value,
            roles={project: request.granted.value},
            secret_sha256=token.sha256,
            created_at=now(),
            created_by=by,
            expires_at=request.expires_at,
        )
        with self._database.writing() as session:
            repository = TokenRepository(session)
            repository.check_free(row.name)
            repository.add(row)
            ProjectRepository(session).hold(project)
        return NewTokenAnswer(**token_answer(row).model_dump(), token=token.text)

    def delete(self, id: str, project: str, by: str) -> None:
        """Raises ``NotFound``."""
        with self._database.writing() as session:
            repository = TokenRepository(session)
            repository.revoke(repository.get(id, project), by)
        self._authenticator.forget()

    def rotate(self, id: str, request: RotateToken, project: str, by: str) -> RotatedTokenAnswer:
        """A new token with the name and the roles of token ``id``, which is revoked in the same transaction.

        When ``id`` is the token of the admin token file, the file holds the new one after it. Raises ``NotFound``,
        ``InvalidInput`` when the new token would have expired already, ``EnvironmentProblem`` when the file cannot be
        written; then the old token stays.
        """
        token = UserToken.make(new_id())
        with self._database.writing() as session:
            repository = TokenRepository(session)
            old = repository.get(id, project)
            expires_at = request.expires_at or old.expires_at
            if expires_at is not None and expires_at <= now():
                raise InvalidInput("The new token would have expired already; give a later expires_at.")
            row = Token(
                id=token.id,
                name=old.name,
                project=old.project,
                scope=old.scope,
                roles=old.roles,
                secret_sha256=token.sha256,
                created_at=now(),
                created_by=by,
                expires_at=expires_at,
            )
            repository.revoke(old, by)
            repository.add(row)
            in_file = self._in_admin_file(id)
            if in_file:
                self._admin.prepare(token)
        if in_file:
            self._admin.replace()
        self._authenticator.forget()
        file = str(self._admin.path) if in_file else None
        return RotatedTokenAnswer(**token_answer(row).model_dump(), token=token.text, file=file)

    def _in_admin_file(self, id: str) -> bool:
        try:
            token = self._admin.read()
        except EnvironmentProblem:
            return False  # It holds something else by now.
        return token is not None and token.id == id
