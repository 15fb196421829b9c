"""Applications."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from epochal.declarations.names import alternatives
from epochal.errors import NameTaken, NotFound, PreconditionFailed
from epochal.service.catalog.executions import BranchOrigin, add_branch, latest_version
from epochal.service.catalog.models import Application, Branch, Execution, Version
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.store_files import StoreFiles
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.pages import PageRequest, Part
from epochal.snapshots import layout
from epochal.wire.projects import project_of

Revisions = Sequence[str] | None
"""Accepted revisions: a change requires that the application has one of them. ``None``: any revision."""


class ApplicationRepository:
    """Applications that are not deleted, by their full names."""

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
        """Like :meth:`named`, with exclusive access until this transaction ends.

        The branch is locked first, as in the calls of drivers, to avoid deadlocks. Raises ``PreconditionFailed`` if the
        application has none of ``revisions``.
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
        """The application's version, branch and execution. The progress of a driver does not change it."""
        return "/".join(self._revision(application))

    def check_revision(self, application: Application, revisions: Revisions) -> None:
        """Raises ``PreconditionFailed``, naming the changes, unless the application has one of these revisions."""
        now = self._revision(application)
        if revisions is None or "/".join(now) in revisions:
            return
        before = next(iter(revisions), "").split("/")
        changes = (
            self._changes(application, before, now)
            if len(before) == len(now)
            else ["not a revision of this application"]
        )
        raise PreconditionFailed(
            f"Application {application.name!r} is not at the revision that If-Match names: {'; '.join(changes)}. "
            f"It is at revision {'/'.join(now)}: read it again, and repeat the call with that revision."
        )

    def _revision(self, application: Application) -> tuple[str, str, str, str]:
        return revision_of(application, self.execution(application), latest_version(self._session, application.id))

    def _changes(self, application: Application, before: Sequence[str], now: Sequence[str]) -> list[str]:
        changes = []
        if before[0] != now[0]:
            version = latest_version(self._session, application.id)
            changes.append(
                f"version {now[0]} was made by {version.created_by!r} at {version.created_at:%Y-%m-%d %H:%M:%S} UTC"
            )
        if before[1] != now[1]:
            branch = self.branch(application)
            changes.append(f"it moved to branch {branch.id!r} ({branch.kind}, by {branch.created_by!r})")
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
        """Ordered by name."""
        query = select(Application).where(Application.project == project, Application.deleted_at.is_(None))
        return paginate(self._session, query, page, [Application.name])

    def add(self, name: str, origin: BranchOrigin, shadow: bool, by: str) -> Application:
        """Create the application and its first branch."""
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
        """Mark the application as deleted and free its name. Its rows are kept for dependent branches; stored logs
        expire."""
        application.deleted_at = application.updated_at = now()
        StoreFiles(self._session).give_up_below(layout.driver_logs(application.name))

    def branch(self, application: Application) -> Branch:
        """The current branch."""
        return self._session.get_one(Branch, application.branch, populate_existing=True)

    def execution(self, application: Application) -> Execution | None:
        """The latest execution."""
        return None if application.execution is None else self._session.get_one(Execution, application.execution)

    def count_by_state(self) -> dict[str, int]:
        """Number of applications by state."""
        state = func.coalesce(Execution.state, "created")
        query = (
            select(state, func.count())
            .select_from(Application)
            .outerjoin(Execution, Execution.id == Application.execution)
            .where(Application.deleted_at.is_(None))
            .group_by(state)
        )
        return {row[0]: row[1] for row in self._session.execute(query)}


def revision_of(application: Application, execution: Execution | None, latest: Version) -> tuple[str, str, str, str]:
    """The parts of the revision of an application. ``latest``: the version that the next start would use."""
    state = "created" if execution is None else execution.state
    return (
        str(latest.number),
        application.branch,
        application.execution or "none",
        "running" if state == "starting" else state,
    )


def beginnings_of(session: Session, applications: Collection[str]) -> Mapping[str, Branch]:
    """The branches on which applications were forked or imported, by id of the application; none of an application
    that began without state."""
    query = select(Branch).where(Branch.application.in_(applications), Branch.kind.in_(("fork", "import")))
    found: dict[str, Branch] = {}
    for branch in session.scalars(query.order_by(Branch.created_at)):
        found.setdefault(branch.application, branch)
    return found
