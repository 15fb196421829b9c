"""Conversion of catalog rows to the nodes and edges of a lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast, get_args

from epochal.contracts.catalog import Change, EpochCounts, EpochState, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.service.catalog.annotations import AnnotationRepository
from epochal.service.catalog.database import Session
from epochal.service.catalog.lineage import LineageRepository
from epochal.service.catalog.models import Branch, Epoch, FoldedEpochs, Version
from epochal.service.catalog.records import changes_of, key_of, manifest_of
from epochal.service.domain.lineage import RunSummary
from epochal.service.domain.snapshots import SnapshotOrigin
from epochal.wire.lineage import EdgeKind, LineageEdge, LineageLabel, LineageNode
from epochal.wire.snapshots import Annotations

_KINDS = get_args(EdgeKind)
_WITHIN_A_BRANCH: Sequence[EdgeKind] = ("upgrade", "rescale", "parameters", "sinks", "configuration", "version")
"""Kind of an edge with several changes: the first of these."""
_NOTHING_SAID = Annotations()


@dataclass(frozen=True)
class Entry:
    """A snapshot, or a run of plain ones from ``oldest`` to ``newest``. ``folded``: epochs before the oldest, of
    which the catalog has nothing else."""

    newest: Epoch
    oldest: Epoch | None = None
    summary: RunSummary | None = None
    folded: FoldedEpochs | None = None

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.newest.branch, self.newest.epoch)

    @property
    def parent(self) -> EpochKey | None:
        if self.folded is not None:
            return EpochKey(self.newest.branch, self.folded.first - 1)
        first = self.oldest or self.newest
        return key_of(first.parent_branch, first.parent_epoch)

    @property
    def first(self) -> int:
        return (self.oldest or self.newest).epoch if self.folded is None else self.folded.oldest

    @property
    def epochs(self) -> int:
        if self.summary is not None:
            return self.summary.epochs
        return 1 if self.folded is None else 1 + self.folded.committed

    @property
    def manifests(self) -> tuple[ManifestReference, ...]:
        """Manifests of the oldest snapshot, and of the newest if it is a different one."""
        rows = [row for row in (self.oldest, self.newest) if row is not None]
        return tuple(reference for row in rows if (reference := manifest_of(row)) is not None)


class Assembly:
    """Nodes and edges of some entries, in order."""

    def __init__(self, session: Session, branches: Mapping[str, Branch], entries: Sequence[Entry]) -> None:
        repository, keys = LineageRepository(session), [entry.key for entry in entries]
        parents = {parent for entry in entries if (parent := entry.parent) is not None}
        self._entries = entries
        self._branches = branches
        self._origins = repository.origins({*keys, *parents})
        self._versions = repository.versions(branches)
        self._savepoints = repository.savepoints(keys)
        self._annotations = AnnotationRepository(session).of(keys)
        self._transactions = repository.transactions()

    def nodes(self) -> list[LineageNode]:
        return [self._node(entry) for entry in self._entries]

    def edges(self) -> list[LineageEdge]:
        return [edge for entry in self._entries if (edge := self._edge(entry)) is not None]

    def _node(self, entry: Entry) -> LineageNode:
        row, origin, key = entry.newest, self._origins[entry.key], entry.key
        annotations = self._annotations.get(key, _NOTHING_SAID)
        return LineageNode(
            branch=row.branch,
            epoch=row.epoch,
            first=entry.first,
            epochs=entry.epochs,
            application=origin.application,
            state=cast(EpochState, row.state),
            version=origin.version,
            artifact=origin.artifact,
            filename=origin.filename,
            parameters=origin.parameters,
            changes=[*self._changes(entry), *self._transactions.get(key, [])],
            savepoints=self._savepoints.get(key, []),
            tags=[tag.name for tag in annotations.tags],
            pinned=annotations.pin is not None,
            message=None if annotations.message is None else annotations.message.message,
            counts=_counts(entry),
            committed_at=row.committed_at,
            collected=row.collected_at is not None,
        )

    def _changes(self, entry: Entry) -> list[Change]:
        """Changes that took effect with this epoch, as recorded when it was prepared; otherwise from the catalog:
        the beginning of the branch, or a version other than the parent's."""
        said = [change for change in changes_of(entry.newest) if change.kind != "transaction"]
        if said or entry.summary is not None:
            return said
        if entry.parent is None or entry.parent.branch != entry.newest.branch:
            branch = self._branches[entry.newest.branch]
            detail: dict[str, Any] = {"message": branch.message} if branch.message else {}
            if branch.kind == "import" and branch.origin is not None:
                detail["origin"] = branch.origin
            return [Change(kind=branch.kind, detail=detail)]
        version, before = self._origins[entry.key].version, self._origins.get(entry.parent)
        if before is None or before.version == version:
            return []
        return [Change(kind="version", detail={"from": before.version, "to": version})]

    def _edge(self, entry: Entry) -> LineageEdge | None:
        if entry.parent is None:
            return None
        kind, label = self._label(entry, entry.parent)
        return LineageEdge(source=entry.parent, target=entry.key, kind=kind, label=label, slices=None)

    def _label(self, entry: Entry, parent: EpochKey) -> tuple[EdgeKind, LineageLabel | None]:
        origin = self._origins[entry.key]
        if parent.branch != entry.newest.branch:
            branch = self._branches[entry.newest.branch]
            kind: EdgeKind = branch.kind if branch.kind in _KINDS else "start"  # type: ignore[assignment]
            return kind, _labelled(origin, branch.created_by, branch.created_at, branch.message)
        changes = {change.kind: change for change in self._changes(entry)}
        for kind in _WITHIN_A_BRANCH:
            if kind in changes:
                version = self._version(entry, origin)
                by = changes[kind].detail.get("by") or (None if version is None else version.created_by)
                message = changes[kind].detail.get("message") or (None if version is None else version.message)
                return kind, _labelled(origin, by, entry.newest.prepared_at, message)
        return "epoch", None

    def _version(self, entry: Entry, origin: SnapshotOrigin) -> Version | None:
        return self._versions.get((self._branches[entry.newest.branch].application, origin.version))


def _labelled(origin: SnapshotOrigin, by: str | None, at: datetime | None, message: str | None) -> LineageLabel:
    return LineageLabel(
        by=by,
        at=at,
        message=message,
        version=origin.version,
        artifact=origin.artifact,
        parameters=origin.parameters,
    )


def _counts(entry: Entry) -> EpochCounts:
    parts = [entry.newest, entry.folded] if entry.summary is None else [entry.summary]
    names = ("rows_in", "rows_out", "state_rows", "state_bytes")
    return EpochCounts(**{name: sum(getattr(part, name) or 0 for part in parts if part is not None) for name in names})
