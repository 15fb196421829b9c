"""Projects, tokens and webhooks: create, change, delete. Projects require administrators of the installation."""

from __future__ import annotations

import secrets

import httpx

from epochal.errors import EnvironmentProblem, Forbidden, InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Token, Webhook
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.tokens import AdminTokenFile, TokenRepository, token_answer
from epochal.service.catalog.types import now
from epochal.service.catalog.webhooks import WebhookRepository, webhook_answer
from epochal.service.domain.addresses import check_host
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.permissions import Principal
from epochal.service.domain.secrets import UserToken
from epochal.service.domain.settings import Settings
from epochal.service.runtime.authenticator import Authenticator
from epochal.wire.administration import CreateWebhook, NewWebhookAnswer
from epochal.wire.projects import ChangeProject, CreateProject, ProjectAnswer, new_name
from epochal.wire.tokens import CreateToken, NewTokenAnswer, Role, RotatedTokenAnswer, RotateToken


class ProjectService:
    def __init__(self, database: Database, authenticator: Authenticator) -> None:
        self._database = database
        self._authenticator = authenticator

    def create(self, request: CreateProject, by: str) -> ProjectAnswer:
        """Raises ``NameTaken``, also for the name of a deleted project."""
        with self._database.writing() as session:
            repository = ProjectRepository(session)
            repository.create(request.name, request.quotas, by)
            return repository.answer(request.name)

    def change(self, name: str, request: ChangeProject, caller: Principal) -> ProjectAnswer:
        """Existing resources are kept, even if they exceed the new quotas. Raises ``NotFound``, ``Forbidden``."""
        _check_administrator(caller)
        with self._database.writing() as session:
            repository = ProjectRepository(session)
            repository.change(name, request.quotas, caller.name)
            return repository.answer(name)

    def delete(self, name: str, caller: Principal) -> None:
        """Delete the project with its tokens, webhooks, uploads and artifacts. Raises ``NotFound``, ``Forbidden``,
        and ``Conflict`` while it has applications."""
        _check_administrator(caller)
        with self._database.writing() as session:
            repository, tokens = ProjectRepository(session), TokenRepository(session)
            repository.delete(name)
            for token in repository.tokens(name):
                tokens.revoke(token, caller.name)
        self._authenticator.forget()


def _check_administrator(caller: Principal) -> None:
    if not caller.may(Role.ADMIN):
        raise Forbidden(f"{caller.described()}; projects require the role admin of the installation.")


class TokenService:
    def __init__(self, database: Database, authenticator: Authenticator, admin: AdminTokenFile) -> None:
        self._database = database
        self._authenticator = authenticator
        self._admin = admin

    def create(self, request: CreateToken, project: str, by: str) -> NewTokenAnswer:
        """The answer has the token itself, which is not stored. Raises ``NameTaken``, ``NotFound``,
        ``InvalidInput``."""
        if request.expires_at is not None and request.expires_at <= now():
            raise InvalidInput("expires_at is in the past.")
        token = UserToken.make(new_id())
        row = Token(
            id=token.id,
            name=new_name(project, request.name),
            project=project,
            roles={project: request.role.value},
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
        """Create a token with the name and the roles of token ``id``, which is revoked in the same transaction.

        If ``id`` is the token of the admin token file, the file is updated. Raises ``NotFound``, ``InvalidInput`` if
        the new token would have expired already, ``EnvironmentProblem`` if the file cannot be written; then the old
        token stays valid.
        """
        token = UserToken.make(new_id())
        with self._database.writing() as session:
            repository = TokenRepository(session)
            old = repository.get(id, project)
            expires_at = request.expires_at or old.expires_at
            if expires_at is not None and expires_at <= now():
                raise InvalidInput("The new token would have expired already; set a later expires_at.")
            row = Token(
                id=token.id,
                name=old.name,
                project=old.project,
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
            return False  # The file has been changed meanwhile.
        return token is not None and token.id == id


class WebhookService:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    def create(self, request: CreateWebhook, project: str, by: str) -> NewWebhookAnswer:
        """Deliver the project's events from now on. Raises ``InvalidInput``, ``NotFound``, and ``Conflict`` when the
        maximum number of webhooks exists."""
        self._check(request.url)
        row = Webhook(
            id=new_id(),
            project=project,
            url=request.url,
            kinds=sorted(set(request.kinds)),
            applications=None if request.applications is None else sorted(set(request.applications)),
            secret=request.secret or f"whsec_{secrets.token_urlsafe(32)}",
            failures=0,
            dropped=0,
            created_at=now(),
            created_by=by,
        )
        with self._database.writing() as session:
            WebhookRepository(session).add(row)
            ProjectRepository(session).hold(project)
            return NewWebhookAnswer(**webhook_answer(row, 0).model_dump(), secret=row.secret)

    def delete(self, id: str, project: str) -> None:
        """Delete the webhook with its pending deliveries. Raises ``NotFound``."""
        with self._database.writing() as session:
            WebhookRepository(session).delete(id, project)

    def _check(self, text: str) -> None:
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL as error:
            raise InvalidInput(f"Invalid URL: {error}.") from error
        if not url.host or url.userinfo:
            raise InvalidInput(
                "The URL requires a host, and must not contain a user or password: deliveries are signed."
            )
        if not self._settings.webhooks_local:
            check_host(url.host)
