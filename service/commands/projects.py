"""Projects: made, given quotas, deleted. By administrators of the installation."""

from __future__ import annotations

from epochal.errors import Forbidden
from epochal.service.catalog.database import Database
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.catalog.tokens import TokenRepository
from epochal.service.domain.permissions import Principal
from epochal.service.runtime.authenticator import Authenticator
from epochal.wire.projects import ChangeProject, CreateProject, ProjectAnswer
from epochal.wire.tokens import Role


class ProjectService:
    def __init__(self, database: Database, authenticator: Authenticator) -> None:
        self._database = database
        self._authenticator = authenticator

    def create(self, request: CreateProject, by: str) -> ProjectAnswer:
        """Raises ``NameTaken``, also for the name of one that was deleted."""
        with self._database.writing() as session:
            repository = ProjectRepository(session)
            repository.create(request.name, request.quotas, by)
            return repository.answer(request.name)

    def change(self, name: str, request: ChangeProject, caller: Principal) -> ProjectAnswer:
        """What is there already stays, also where it is more than is allowed from now on. Raises ``NotFound``,
        ``Forbidden``."""
        _check_administrator(caller)
        with self._database.writing() as session:
            repository = ProjectRepository(session)
            repository.change(name, request.quotas, caller.name)
            return repository.answer(name)

    def delete(self, name: str, caller: Principal) -> None:
        """With its tokens, webhooks, uploads and artifacts. Raises ``NotFound``, ``Forbidden``, and ``Conflict`` while
        it has applications."""
        _check_administrator(caller)
        with self._database.writing() as session:
            repository, tokens = ProjectRepository(session), TokenRepository(session)
            repository.delete(name)
            for token in repository.tokens(name):
                tokens.revoke(token, caller.name)
        self._authenticator.forget()


def _check_administrator(caller: Principal) -> None:
    if not caller.may(Role.ADMIN):
        raise Forbidden(
            f"{caller.described()}; projects are for administrators of the installation, who have the role admin in it."
        )
