"""History of a key, and the epoch that last changed it: from the snapshots' files, with times from the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import NotFound, SnapshotExpired
from epochal.service.domain.pages import PageRequest
from epochal.service.domain.snapshots import ReadFrom, SnapshotOrigin, Snapshots, expiring
from epochal.service.queries.state.instance_lookups import instance_format
from epochal.service.queries.state.lookups import KeyNotFound
from epochal.service.queries.state.readers import Object, key_object, leading_object, past_table, value_object
from epochal.service.queries.state.window_lookups import pane_note
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots.key_history import Expired, HistoryPage, HistoryPosition, KeyChange, history_of_key
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable
from epochal.wire.history import Blame, KeyChangeAnswer, KeyHistory, SourceSlice

_MOST_PAGES = 25
"""Maximum number of pages of epochs that are searched for the last change of a key."""


@dataclass(frozen=True)
class _Subject:
    """A key, and the snapshot from which its history is read."""

    reference: ManifestReference
    table: StateTable
    key: tuple[Any, ...]

    @property
    def shown(self) -> Object:
        return leading_object(self.table, self.key)


class Histories:
    """May block; call from threads. Raises ``NotFound`` (application, table, epoch, ..), ``KeyNotFound``,
    ``InvalidKey``, ``SnapshotExpired``, ``FileMissing``, ``FileCorrupt``."""

    def __init__(self, store: SnapshotStore, snapshots: Snapshots) -> None:
        self._store = store
        self._snapshots = snapshots

    def history(self, application: str, table: str, key: str, read: ReadFrom, page: PageRequest) -> KeyHistory:
        """All changes of a key, newest first. ``key`` as in a path: complete, or the operator's key for list and map
        state."""
        subject = self._subject(application, table, key, read)
        start = self._position(application, page) or HistoryPosition(subject.reference)
        found = self._page(subject, start, page.limit)
        following = found.following
        return KeyHistory(
            table=table,
            key=subject.shown,
            branch=start.reference.branch,
            epoch=start.reference.epoch,
            items=self._items(found.changes),
            next_cursor=None if following is None else _cursor(following, page),
            known_since=None if found.expired is None else found.expired.since,
            note=pane_note(subject.table),
        )

    def blame(self, application: str, table: str, key: str, read: ReadFrom) -> Blame:
        """The epoch that last changed the key, with its slices, code version, parameters and time."""
        subject = self._subject(application, table, key, read)
        position: HistoryPosition | None = HistoryPosition(subject.reference)
        expired: Expired | None = None
        for _ in range(_MOST_PAGES):
            if position is None:
                break
            found = self._page(subject, position, 1)
            if found.changes:
                return self._blame(subject, found.changes[0])
            position, expired = found.following, found.expired
        if position is not None:
            raise NotFound(
                f"Key {key!r} of state {table!r} was not changed from epoch {position.reference.epoch} on, where the "
                "search ends. Search further with the key's history."
            )
        if expired is None:
            raise KeyNotFound(f"State {table!r} of {application!r} has never had a key {key!r}.")
        raise SnapshotExpired(
            f"Key {key!r} of state {table!r} was not changed since epoch {expired.since.epoch}; earlier epochs have "
            "expired. To keep more, create savepoints or retain more epochs (retained_epochs)."
        )

    def _subject(self, application: str, table: str, key: str, read: ReadFrom) -> _Subject:
        reference = self._reference(application, read)
        with expiring(self._snapshots, reference.key):
            table_then = past_table(SnapshotReader(self._store, reference), application, table)
        instances = instance_format(table_then)
        if instances is not None:
            instances.check_is_of_one(key)
        return _Subject(reference, table_then, RowFormat(table_then).path_key(key))

    def _reference(self, application: str, read: ReadFrom) -> ManifestReference:
        if read.of_the_past:
            return read.resolve(self._snapshots, application)
        head = self._snapshots.head(application)
        latest = head.committed
        if read.isolation == "read_uncommitted" and head.prepared:
            latest = head.prepared[-1]
        if latest is None:
            raise NotFound(f"Application {application!r} has not committed an epoch yet and has no state.")
        return latest

    def _page(self, subject: _Subject, start: HistoryPosition, limit: int) -> HistoryPage:
        with expiring(self._snapshots, start.reference.key):
            found = history_of_key(self._store, subject.table.id, subject.key, start, limit)
        if found.expired is not None and self._snapshots.expired(found.expired.at) is None:
            raise found.expired.missing  # not collected: the store is damaged
        return found

    def _position(self, application: str, page: PageRequest) -> HistoryPosition | None:
        after = page.after(str, int, int, str, int)
        if after is None:
            return None
        branch, epoch, skip, of_bases, at = after
        bases = self._snapshots.reference(application, EpochKey(of_bases, at)) if of_bases else None
        return HistoryPosition(self._snapshots.reference(application, EpochKey(branch, epoch)), max(skip, 0), bases)

    def _items(self, changes: Sequence[KeyChange]) -> list[KeyChangeAnswer]:
        origins = self._snapshots.origins({change.manifest.key for change in changes})
        return [_item(change, origins.get(change.manifest.key)) for change in changes]

    def _blame(self, subject: _Subject, change: KeyChange) -> Blame:
        manifest = change.manifest
        origin = self._snapshots.origins([manifest.key]).get(manifest.key)
        return Blame(
            table=subject.table.id,
            key=subject.shown,
            branch=subject.reference.branch,
            epoch=subject.reference.epoch,
            change=_item(change, origin),
            artifact=manifest.artifact,
            filename=None if origin is None else origin.filename,
            version=None if origin is None else origin.version,
            parameters=manifest.parameters,
            changes=list(manifest.changes),
            slices={name: SourceSlice.of(slice) for name, slice in manifest.slices.items()},
        )


def _item(change: KeyChange, origin: SnapshotOrigin | None) -> KeyChangeAnswer:
    manifest, before, after = change.manifest, change.before, change.after
    return KeyChangeAnswer(
        branch=manifest.branch,
        epoch=manifest.epoch,
        application=manifest.application if origin is None else origin.application,
        at=(None if origin is None else origin.committed_at) or manifest.created_at,
        key=key_object(after.table, after.key),
        old=None if before is None else value_object(before.table, before.values),
        new=value_object(after.table, after.values),
        expired=change.expired,
        since=None if after.values is None else dict(after.table.partial_since) or None,
    )


def _cursor(position: HistoryPosition, page: PageRequest) -> str:
    bases = position.bases
    of_bases = ("", 0) if bases is None else (bases.branch, bases.epoch)
    return page.following(position.reference.branch, position.reference.epoch, position.skip, *of_bases)
