"""Heads of all applications, with a number of statements that does not depend on the number of applications."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import CTE, ColumnElement, Row, SQLColumnExpression, func, select
from sqlalchemy.orm import Session, aliased

from epochal.contracts.catalog import ManifestReference
from epochal.engine.epoch import State
from epochal.service.catalog.models import Application, Branch, Epoch
from epochal.service.domain.snapshots import ApplicationHead


def heads(session: Session, application: str | None = None) -> Sequence[ApplicationHead]:
    """Heads of all applications that are not deleted, ordered by name; or of the one named ``application``, if it
    exists."""
    chosen: ColumnElement[bool] = Application.deleted_at.is_(None)
    if application is not None:
        chosen = chosen & (Application.name == application)
    branches = select(Application.name, Application.branch).where(chosen)
    found = session.execute(branches.order_by(Application.name)).all()
    committed, prepared = _committed(session, chosen), _prepared(session, chosen)
    return [ApplicationHead(name, branch, committed.get(name), tuple(prepared.get(name, ()))) for name, branch in found]


def committed_heads(session: Session, applications: Collection[str]) -> Mapping[str, Epoch]:
    """The latest committed epoch of each lineage, by id of the application; none where nothing is committed."""
    lines = _lines(Application.id.in_(applications))
    query = select(lines.c.id, Epoch).select_from(lines)
    joined = query.join(Epoch, (Epoch.branch == lines.c.branch) & (Epoch.epoch == lines.c.committed))
    return {row[0]: row[1] for row in session.execute(joined)}


def _committed(session: Session, chosen: ColumnElement[bool]) -> Mapping[str, ManifestReference]:
    """The latest committed epoch of each lineage."""
    lines = _lines(chosen)
    query = (
        select(lines.c.name, Epoch.branch, Epoch.epoch, Epoch.manifest_path, Epoch.manifest_sha256)
        .select_from(lines)
        .join(Epoch, (Epoch.branch == lines.c.branch) & (Epoch.epoch == lines.c.committed))
    )
    return {row.name: _reference(row) for row in session.execute(query)}


def _lines(chosen: ColumnElement[bool]) -> CTE:
    """The branch of each chosen application and, while nothing is committed on it, the branches from which it was
    forked."""
    own = (
        select(
            Application.id,
            Application.name,
            Branch.id.label("branch"),
            Branch.parent_branch,
            Branch.parent_epoch,
            _latest(Branch.id).label("committed"),
        )
        .join(Branch, Branch.id == Application.branch)
        .where(chosen)
    )
    lines = own.cte("lines", recursive=True)
    before = aliased(Branch)
    return lines.union_all(
        select(
            lines.c.id,
            lines.c.name,
            before.id,
            before.parent_branch,
            before.parent_epoch,
            _latest(before.id, lines.c.parent_epoch),
        )
        .select_from(lines)
        .join(before, before.id == lines.c.parent_branch)
        .where(lines.c.committed.is_(None))
    )


def _latest(
    branch: SQLColumnExpression[str], last: SQLColumnExpression[int | None] | None = None
) -> ColumnElement[int | None]:
    epoch = aliased(Epoch)
    query = select(func.max(epoch.epoch)).where(epoch.branch == branch, epoch.state == State.COMMITTED.value)
    return (query if last is None else query.where(epoch.epoch <= last)).correlate_except(epoch).scalar_subquery()


def _prepared(session: Session, chosen: ColumnElement[bool]) -> Mapping[str, list[ManifestReference]]:
    """Prepared epochs of the current branches, oldest first."""
    query = (
        select(Application.name, Epoch.branch, Epoch.epoch, Epoch.manifest_path, Epoch.manifest_sha256)
        .join(Epoch, Epoch.branch == Application.branch)
        .where(chosen, Epoch.state == State.PREPARED.value)
    )
    found: dict[str, list[ManifestReference]] = {}
    for row in session.execute(query.order_by(Application.name, Epoch.epoch)):
        found.setdefault(row.name, []).append(_reference(row))
    return found


def _reference(row: Row[str, str, int, str | None, str | None]) -> ManifestReference:
    """A constraint of the table ensures both values for prepared and committed epochs; the model refuses empty ones."""
    _, branch, epoch, path, sha256 = row
    return ManifestReference(branch=branch, epoch=epoch, path=path or "", sha256=sha256 or "")
