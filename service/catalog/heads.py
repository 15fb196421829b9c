"""Where all applications stand: as many statements for a thousand of them as for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import CTE, ColumnElement, func, select
from sqlalchemy.orm import Session, aliased

from epochal.contracts.catalog import ManifestReference
from epochal.engine.epoch import State
from epochal.service.catalog.models import Application, Branch, Epoch
from epochal.service.domain.ports import ApplicationHead


def heads(session: Session, application: str | None = None) -> Sequence[ApplicationHead]:
    """Of all applications that are not deleted, by name; of the one with this name, if it is there."""
    branches = select(Application.name, Application.branch).where(Application.deleted_at.is_(None))
    if application is not None:
        branches = branches.where(Application.name == application)
    found = session.execute(branches.order_by(Application.name)).all()
    committed, prepared = _committed(session, application), _prepared(session, application)
    return [
        ApplicationHead(name, branch, committed.get(name), tuple(prepared.get(name, ()))) for name, branch in found
    ]


def _committed(session: Session, application: str | None) -> Mapping[str, ManifestReference]:
    """The latest committed epoch of each lineage."""
    lines = _lines(application)
    query = (
        select(lines.c.name, Epoch.branch, Epoch.epoch, Epoch.manifest_path, Epoch.manifest_sha256)
        .select_from(lines)
        .join(Epoch, (Epoch.branch == lines.c.branch) & (Epoch.epoch == lines.c.committed))
    )
    return {name: _reference(*manifest) for name, *manifest in session.execute(query)}


def _lines(application: str | None) -> CTE:
    """Each application's branch and, while nothing is committed on it, the one that it came from, up to where it did."""
    own = (
        select(
            Application.name,
            Branch.id.label("branch"),
            Branch.parent_branch,
            Branch.parent_epoch,
            _latest(Branch.id).label("committed"),
        )
        .join(Branch, Branch.id == Application.branch)
        .where(Application.deleted_at.is_(None))
    )
    if application is not None:
        own = own.where(Application.name == application)
    lines = own.cte("lines", recursive=True)
    before = aliased(Branch)
    return lines.union_all(
        select(
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


def _latest(branch: ColumnElement[str], last: ColumnElement[int] | None = None) -> ColumnElement[int | None]:
    epoch = aliased(Epoch)
    query = select(func.max(epoch.epoch)).where(epoch.branch == branch, epoch.state == State.COMMITTED.value)
    return (query if last is None else query.where(epoch.epoch <= last)).correlate_except(epoch).scalar_subquery()


def _prepared(session: Session, application: str | None) -> Mapping[str, list[ManifestReference]]:
    """Epochs of the branches that are prepared and not committed, oldest first."""
    query = (
        select(Application.name, Epoch.branch, Epoch.epoch, Epoch.manifest_path, Epoch.manifest_sha256)
        .join(Epoch, Epoch.branch == Application.branch)
        .where(Application.deleted_at.is_(None), Epoch.state == State.PREPARED.value)
    )
    if application is not None:
        query = query.where(Application.name == application)
    found: dict[str, list[ManifestReference]] = {}
    for name, *manifest in session.execute(query.order_by(Application.name, Epoch.epoch)):
        found.setdefault(name, []).append(_reference(*manifest))
    return found


def _reference(branch: str, epoch: int, path: str, sha256: str) -> ManifestReference:
    return ManifestReference(branch=branch, epoch=epoch, path=path, sha256=sha256)
