from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from epochal.contracts.catalog import Change
from epochal.contracts.identity import EpochKey
from epochal.service.catalog.models import Application, Branch, Epoch, Execution, Operation, Savepoint, Version
from epochal.service.pagination import PageRequest, Part, paginate
from epochal.service.snapshots.repository import SNAPSHOTS


@dataclass(frozen=True)
class Making:
    """What a snapshot was made by."""

    application: str
    version: Version


class LineageRepository:
    """The tree of branches that an application belongs to: what it came from, and what came from that."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def tree(self, application: Application) -> Mapping[str, Branch]:
        """All branches that are connected to the application's, by id."""
        found: dict[str, Branch] = {}
        looking = list(self._session.scalars(select(Branch).where(Branch.application == application.id)))
        while looking:
            found.update({branch.id: branch for branch in looking})
            parents = {branch.parent_branch for branch in looking if branch.parent_branch} - found.keys()
            ids = [branch.id for branch in looking]
            near = select(Branch).where(Branch.id.in_(parents) | Branch.parent_branch.in_(ids))
            looking = [branch for branch in self._session.scalars(near) if branch.id not in found]
        return found

    def page(self, branches: Sequence[str], page: PageRequest) -> Part:
        """Snapshots of these branches, newest first."""
        query = select(Epoch).where(Epoch.branch.in_(branches), Epoch.state.in_([state.value for state in SNAPSHOTS]))
        return paginate(self._session, query, page, [Epoch.prepared_at, Epoch.branch, Epoch.epoch], descending=True)

    def making(self, rows: Sequence[Epoch]) -> Mapping[str, Making]:
        """By execution."""
        query = (
            select(Execution.id, Application.name, Version)
            .join(Application, Application.id == Execution.application)
            .join(Version, (Version.application == Execution.application) & (Version.number == Execution.version))
            .where(Execution.id.in_({row.execution for row in rows}))
        )
        return {execution: Making(name, version) for execution, name, version in self._session.execute(query)}

    def savepoints(self, rows: Sequence[Epoch]) -> Mapping[EpochKey, list[str]]:
        keys = [(row.branch, row.epoch) for row in rows]
        query = select(Savepoint).where(tuple_(Savepoint.branch, Savepoint.epoch).in_(keys)).order_by(Savepoint.name)
        names: dict[EpochKey, list[str]] = {}
        for savepoint in self._session.scalars(query):
            names.setdefault(EpochKey(savepoint.branch, savepoint.epoch), []).append(savepoint.name)
        return names

    def transactions(self, rows: Sequence[Epoch]) -> Mapping[EpochKey, list[Change]]:
        """What administrators decided about single sinks' parts of these epochs. There are few, in all of a catalog."""
        query = select(Operation).where(Operation.kind == "transaction", Operation.state == "succeeded")
        wanted = {EpochKey(row.branch, row.epoch) for row in rows}
        found: dict[EpochKey, list[Change]] = {}
        for operation in self._session.scalars(query.order_by(Operation.id)):
            detail = dict(operation.arguments)
            key = EpochKey(detail.pop("branch"), detail.pop("epoch"))
            if key in wanted and detail["action"] != "retry":
                found.setdefault(key, []).append(Change(kind="transaction", detail=detail))
        return found

    def versions_of(self, keys: Sequence[EpochKey]) -> Mapping[EpochKey, int]:
        """The version number of the execution that made each epoch."""
        query = (
            select(Epoch.branch, Epoch.epoch, Execution.version)
            .join(Execution, Execution.id == Epoch.execution)
            .where(tuple_(Epoch.branch, Epoch.epoch).in_([(key.branch, key.epoch) for key in keys]))
        )
        return {EpochKey(branch, epoch): version for branch, epoch, version in self._session.execute(query)}
