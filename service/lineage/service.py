"""Lineage: the tree of snapshots, newest first, from the catalog alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from epochal.contracts.catalog import Change, EpochCounts, EpochState
from epochal.contracts.identity import EpochKey
from epochal.service.applications.repository import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Branch, Epoch
from epochal.service.catalog.records import head_of, key_of
from epochal.service.lineage.repository import LineageRepository, Making
from epochal.service.lineage.schemas import LineageAnswer, LineageEdge, LineageNode
from epochal.service.pagination import PageRequest


class LineageService:
    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, application: str, page: PageRequest) -> LineageAnswer:
        with self._database.reading() as session:
            applications, repository = ApplicationRepository(session), LineageRepository(session)
            row = applications.named(application)
            branches = repository.tree(row)
            part = repository.page(list(branches), page)
            rows: list[Epoch] = list(part.rows)
            making, savepoints = repository.making(rows), repository.savepoints(rows)
            parents = [parent for item in rows if (parent := _parent(item)) is not None]
            versions, transactions = repository.versions_of(parents), repository.transactions(rows)
            return LineageAnswer(
                application=application,
                head=head_of(applications.branch(row)),
                nodes=[
                    _node(
                        item,
                        making[item.execution],
                        savepoints.get(_key(item), []),
                        _changes(item, branches, making, versions) + transactions.get(_key(item), []),
                    )
                    for item in rows
                ],
                edges=[edge for item in rows if (edge := _edge(item, branches)) is not None],
                next_cursor=part.next_cursor,
            )


def _node(row: Epoch, making: Making, savepoints: list[str], changes: list[Change]) -> LineageNode:
    return LineageNode(
        branch=row.branch,
        epoch=row.epoch,
        application=making.application,
        state=cast(EpochState, row.state),
        artifact=making.version.artifact,
        parameters=making.version.parameters,
        changes=changes,
        savepoints=savepoints,
        counts=EpochCounts(
            rows_in=row.rows_in or 0,
            rows_out=row.rows_out or 0,
            state_rows=row.state_rows or 0,
            state_bytes=row.state_bytes or 0,
        ),
        committed_at=row.committed_at,
    )


def _edge(row: Epoch, branches: Mapping[str, Branch]) -> LineageEdge | None:
    parent = _parent(row)
    if parent is None:
        return None
    kind = "epoch" if parent.branch == row.branch else branches[row.branch].kind
    return LineageEdge(source=parent, target=_key(row), kind=cast(Literal["epoch", "fork", "start"], kind))


def _changes(
    row: Epoch, branches: Mapping[str, Branch], making: Mapping[str, Making], versions: Mapping[EpochKey, int]
) -> list[Change]:
    """What took effect with this epoch: the beginning of its branch, or another version than its parent's."""
    parent = _parent(row)
    if parent is None or parent.branch != row.branch:
        branch = branches[row.branch]
        return [Change(kind=branch.kind, detail={"message": branch.message} if branch.message else {})]
    version = making[row.execution].version.number
    before = versions.get(parent)
    return [] if before in (None, version) else [Change(kind="version", detail={"from": before, "to": version})]


def _key(row: Epoch) -> EpochKey:
    return EpochKey(row.branch, row.epoch)


def _parent(row: Epoch) -> EpochKey | None:
    return key_of(row.parent_branch, row.parent_epoch)
