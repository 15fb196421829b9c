from __future__ import annotations

from epochal.service.catalog.database import Database
from epochal.service.catalog.projects import ProjectRepository
from epochal.service.domain.pages import PageRequest, cut
from epochal.service.domain.permissions import Principal
from epochal.wire.bodies import Page
from epochal.wire.projects import ProjectAnswer
from epochal.wire.tokens import Role


class ProjectQueries:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> ProjectAnswer:
        """Raises ``NotFound``."""
        with self._database.reading() as session:
            return ProjectRepository(session).answer(name)

    def page(self, page: PageRequest, caller: Principal) -> Page[ProjectAnswer]:
        """Those in which the caller has a role, by name."""
        after = page.after(str)
        with self._database.reading() as session:
            repository = ProjectRepository(session)
            names = [
                name
                for name in repository.names()
                if caller.may(Role.VIEWER, name) and (after is None or name > after[0])
            ]
            part = cut(names[: page.limit + 1], page, lambda name: [name])
            return Page(items=[repository.answer(name) for name in part.rows], next_cursor=part.next_cursor)
