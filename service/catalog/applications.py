"""Applications."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.declarations.names import alternatives
from epochal.errors import NameTaken, NotFound, PreconditionFailed
from epochal.service.catalog.executions import BranchOrigin, add_branch, latest_version
from epochal.service.catalog.models import Application, Branch, Execution
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.pages import PageRequest, Part
from epochal.snapshots import layout
from epochal.wire.projects import project_of

Revisions = Sequence[str] | None
"""Of which an application has to be at one, for a change of it to be made; ``None``: it may be at any."""


class ApplicationRepository:
    """Applications that were not deleted, by their full names."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def named(self, name: str) -> Application:
        """Raises ``NotFound``."""
        query = select(Application).where(Application.name == name, Application.deleted_at.is_(None))
        row = self._session.scalars(query).one_or_none()
        if row is None:
            of_project = Application.project == project_of(name), Application.deleted_at.is_(None)
            known = self._session.scalars(select(Application.name).where(*of_project))
            raise NotFound(f"There is no application {name!r}.{alternatives(name, known)}")
        return row

    def locked(self, name: str, revisions: Revisions = None) -> Application:
        """As :meth:`named`; nobody else starts, stops, deletes or drives it until this transaction ends.

        The branch is locked first, as drivers' calls do: two that wait for each other would be a deadlock. Raises
        ``PreconditionFailed`` when it is at none of ``revisions``.
        """
        while True:
            row = self.named(name)
            branch = row.branch
            self._session.get_one(Branch, branch, with_for_update=True, populate_existing=True)
            self._session.refresh(row, with_for_update=True)
            if row.deleted_at is not None:
                raise NotFound(f"There is no application {name!r}.")
            if row.branch == branch:
                self.check_revision(row, revisions)
                return row

    def revision(self, application: Application) -> str:
        """What people decide: version, branch, whether it runs. It stays the same while the driver makes progress."""
        return "/".join(self._revision(application))

    def check_revision(self, application: Application, revisions: Revisions) -> None:
        """Raises ``PreconditionFailed``, which says what has changed, when it is at none of these."""
        now = self._revision(application)
        if revisions is None or "/".join(now) in revisions:
            return
        before = next(iter(revisions), "").split("/")
        changes = self._changes(application, before, now) if len(before) == len(now) else ["that is no revision of it"]
        raise PreconditionFailed(
            f"Application {application.name!r} is not at the revision that If-Match names: {'; '.join(changes)}. It is "
            f"at revision {'/'.join(now)}: look at it, and decide again."
        )

    def _revision(self, application: Application) -> tuple[str, str, str, str]:
        execution = self.execution(application)
        version = latest_version(self._session, application.id)
        state = "created" if execution is None else execution.state
        return (
            str(version.number),
            application.branch,
            application.execution or "none",
            "running" if state == "starting" else state,
        )

    def _changes(self, application: Application, before: Sequence[str], now: Sequence[str]) -> list[str]:
        changes = []
        if before[0] != now[0]:
            version = latest_version(self._session, application.id)
            changes.append(
                f"version {now[0]} was made by {version.created_by!r} at {version.created_at:%Y-%m-%d %H:%M:%S} UTC"
            )
        if before[1] != now[1]:
            branch = self.branch(application)
            changes.append(f"it went to branch {branch.id!r} ({branch.kind}, by {branch.created_by!r})")
        if before[2] != now[2]:
            changes.append("it was started")
        if before[3] != now[3]:
            changes.append(f"it is {now[3]}")
        return changes

    def check_free(self, name: str) -> None:
        """Raises ``NameTaken``."""
        query = select(Application.id).where(Application.name == name, Application.deleted_at.is_(None))
        if self._session.scalar(query) is not None:
            raise NameTaken(f"There is an application {name!r} already; choose another name.")

    def all(self) -> Sequence[Application]:
        return self._session.scalars(select(Application).where(Application.deleted_at.is_(None))).all()

    def page(self, page: PageRequest, project: str) -> Part:
        """By name."""
        query = select(Application).where(Application.project == project, Application.deleted_at.is_(None))
        return paginate(self._session, query, page, [Application.name])

    def add(self, name: str, origin: BranchOrigin, shadow: bool, by: str) -> Application:
        """With its first branch."""
        self.check_free(name)
        moment = now()
        row = Application(
            id=new_id(),
            name=name,
            project=project_of(name),
            branch="",
            shadow=shadow,
            created_at=moment,
            updated_at=moment,
            created_by=by,
        )
        self._session.add(row)
        self._session.flush()
        add_branch(self._session, row, origin, by)
        return row

    def delete(self, application: Application) -> None:
        """Its name is free again; its rows stay, for what stands on them. Logs that were kept go."""
        application.deleted_at = application.updated_at = now()
        StoreFiles(self._session).give_up_below(layout.driver_logs(application.name))

    def branch(self, application: Application) -> Branch:
        """The current one."""
        return self._session.get_one(Branch, application.branch, populate_existing=True)

    def beginning(self, application: Application) -> Branch | None:
        """The branch with which it was forked or imported; ``None`` of one that began with nothing."""
        query = select(Branch).where(Branch.application == application.id, Branch.kind.in_(("fork", "import")))
        return self._session.scalars(query.order_by(Branch.created_at).limit(1)).first()

    def execution(self, application: Application) -> Execution | None:
        """The latest one."""
        return None if application.execution is None else self._session.get_one(Execution, application.execution)

    def count_by_state(self) -> dict[str, int]:
        """For metrics."""
        state = func.coalesce(Execution.state, "created")
        query = (
            select(state, func.count())
            .select_from(Application)
            .outerjoin(Execution, Execution.id == Application.execution)
            .where(Application.deleted_at.is_(None))
            .group_by(state)
        )
        return {row[0]: row[1] for row in self._session.execute(query)}
