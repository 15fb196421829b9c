"""Projects with their quotas and usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.errors import Conflict, NameTaken, NotFound, QuotaExceeded
from epochal.service.catalog.models import (
    Application,
    Execution,
    Json,
    Project,
    ProjectArtifact,
    Token,
    Upload,
    Version,
    Webhook,
)
from epochal.service.catalog.records import scaled_as
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import now
from epochal.wire.configuration import ApplicationConfiguration
from epochal.wire.projects import DEFAULT_PROJECT, ProjectAnswer, ProjectUse, Quotas

Quota = Literal["applications", "running", "subtasks"]
QUOTAS: Sequence[Quota] = ("applications", "running", "subtasks")
APPLICATIONS: Sequence[Quota] = ("applications",)
RUNNING: Sequence[Quota] = ("running", "subtasks")
"""Quotas that an execution counts against."""


def most_subtasks(configuration: Json, graph: Json | None) -> int:
    """The largest number of subtasks of an operator, configured or declared in the graph."""
    configured = ApplicationConfiguration.model_validate(configuration)
    found = [configured.parallelism, *configured.parallelisms.values()]
    for node in () if graph is None else graph["nodes"]:
        if isinstance(declared := node["description"].get("parallelism"), int):
            found.append(configured.parallelism_of(scaled_as(node), declared))
    return max(found)


class ProjectRepository:
    """Projects that are not deleted. ``default`` always exists."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def check_there(self, name: str) -> None:
        """Raises ``NotFound``."""
        if name == DEFAULT_PROJECT:
            return
        row = self._session.get(Project, name)
        if row is None or row.deleted_at is not None:
            raise NotFound(f"There is no project {name!r}.")

    def names(self) -> Sequence[str]:
        found = self._session.scalars(select(Project.name).where(Project.deleted_at.is_(None))).all()
        return sorted({DEFAULT_PROJECT, *found})

    def create(self, name: str, quotas: Quotas, by: str) -> Project:
        """Raises ``NameTaken``."""
        row = self._session.get(Project, name, with_for_update=True)
        if name == DEFAULT_PROJECT or (row is not None and row.deleted_at is None):
            raise NameTaken(f"There is a project {name!r} already; choose another name.")
        if row is not None:
            raise NameTaken(f"A deleted project had the name {name!r}, and its history is kept; choose another name.")
        return self._add(name, quotas, by)

    def change(self, name: str, quotas: Quotas, by: str) -> Project:
        """Raises ``NotFound``."""
        row = self._locked(name)
        if row is None:
            return self._add(name, quotas, by)
        for each in QUOTAS:
            setattr(row, each, getattr(quotas, each))
        self._session.flush()
        return row

    def delete(self, name: str) -> None:
        """Delete a project with its webhooks, uploads and artifacts. The caller revokes its tokens. Raises
        ``NotFound``; ``Conflict`` for ``default`` and for a project with applications."""
        if name == DEFAULT_PROJECT:
            raise Conflict("The project 'default' cannot be deleted.")
        row = self._locked(name)
        assert row is not None  # only the default project has no row
        names = select(Application.name).where(Application.project == name, Application.deleted_at.is_(None))
        found = self._session.scalars(names.order_by(Application.name).limit(4)).all()
        if found:
            some = ", ".join(repr(each) for each in found[:3]) + (", .." if len(found) > 3 else "")
            raise Conflict(f"The project {name!r} has applications: {some}. Delete them first.")
        row.deleted_at = now()
        for webhook in self._session.scalars(select(Webhook).where(Webhook.project == name)).all():
            self._session.delete(webhook)
        for upload in self._session.scalars(select(Upload).where(Upload.project == name)).all():
            StoreFiles(self._session).give_up_all("upload", upload.id)
            self._session.delete(upload)
        for artifact in self._session.scalars(select(ProjectArtifact).where(ProjectArtifact.project == name)).all():
            self._session.delete(artifact)
        self._session.flush()

    def tokens(self, name: str) -> list[Token]:
        """The project's tokens, locked."""
        query = select(Token).where(Token.project == name).order_by(Token.id).with_for_update()
        return list(self._session.scalars(query))

    def quotas(self, name: str) -> Quotas:
        """The project's quotas; unlimited by default."""
        row = self._session.get(Project, name)
        return Quotas() if row is None else Quotas(**{each: getattr(row, each) for each in QUOTAS})

    def use(self, name: str) -> ProjectUse:
        there = select(func.count()).where(Application.project == name, Application.deleted_at.is_(None))
        query = (
            select(Execution.id, Version.configuration, Version.graph)
            .join(Application, Application.id == Execution.application)
            .join(Version, (Version.application == Execution.application) & (Version.number >= Execution.version))
            .where(Application.project == name, Execution.ended_at.is_(None), Version.failure.is_(None))
        )
        running: dict[str, int] = {}
        # An execution that changes its version counts with the larger parallelism.
        for execution, configuration, graph in self._session.execute(query):
            running[execution] = max(running.get(execution, 0), most_subtasks(configuration, graph))
        return ProjectUse(
            applications=self._session.scalar(there) or 0,
            running=len(running),
            subtasks=sum(running.values()),
        )

    def hold(self, name: str) -> None:
        """Prevent deletion until the transaction ends. It has to be the last lock of the transaction. Raises
        ``NotFound``."""
        self._locked(name)

    def check_room(self, name: str, added: Sequence[Quota] = QUOTAS) -> None:
        """Check after adding something, before the commit, that the project exists and does not exceed its quotas for
        ``added``. Concurrent additions are serialised.

        It has to take the last lock of the transaction. Raises ``NotFound``, ``QuotaExceeded``.
        """
        row = self._locked(name)
        if row is None or all(getattr(row, each) is None for each in added):
            return
        self._session.flush()
        use = self.use(name)
        for each in added:
            limit, used = getattr(row, each), getattr(use, each)
            if limit is not None and used > limit:
                raise QuotaExceeded(
                    f"The project {name!r} may have {limit} {_WORDS[each]}, and would have {used}. "
                    f"{_REMEDIES[each]}, or ask an administrator of the installation for a larger quota (`epochal "
                    "project set`)."
                )

    def answer(self, name: str) -> ProjectAnswer:
        """Raises ``NotFound``."""
        self.check_there(name)
        row = self._session.get(Project, name)
        return ProjectAnswer(
            name=name,
            quotas=self.quotas(name),
            use=self.use(name),
            created_at=None if row is None else row.created_at,
            created_by=None if row is None else row.created_by,
        )

    def _locked(self, name: str) -> Project | None:
        row = self._session.get(Project, name, with_for_update=True, populate_existing=True)
        if name != DEFAULT_PROJECT and (row is None or row.deleted_at is not None):
            raise NotFound(f"There is no project {name!r}.")
        return row

    def _add(self, name: str, quotas: Quotas, by: str) -> Project:
        row = Project(name=name, created_at=now(), created_by=by, **quotas.model_dump())
        self._session.add(row)
        self._session.flush()
        return row


_WORDS: Mapping[Quota, str] = {
    "applications": "applications",
    "running": "concurrent executions",
    "subtasks": "running subtasks (the sum of parallelism)",
}
_REMEDIES: Mapping[Quota, str] = {
    "applications": "Delete an application",
    "running": "Stop an application",
    "subtasks": "Lower the parallelism, or stop an application",
}
