"""History of a key: the epochs that changed its row, newest first, with the rows before and after.

A write of an equal row is not a change. The expiry of a row is a change in the first epoch whose clock reached its
time. Across a change of the table's schema, rows are compared on their common columns.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing
from epochal.snapshots.key_walk import Gap, KeyRow, KeyWalk, Step, seen_at
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.reader import Key, Row
from epochal.snapshots.store import SnapshotStore

MOST_EPOCHS = 2_000
"""Maximum number of epochs read for one page. A page may be short or empty and not be the last."""


@dataclass(frozen=True)
class KeyChange:
    """Change of one full key by one epoch: the row before, if known, and after, which may be a deletion."""

    manifest: Manifest
    before: KeyRow | None
    after: KeyRow

    @property
    def key(self) -> Row:
        return self.after.key

    @property
    def old(self) -> Row | None:
        return None if self.before is None else self.before.values

    @property
    def new(self) -> Row | None:
        return self.after.values

    @property
    def expired(self) -> bool:
        """True if the row has expired and was not deleted."""
        return self.after.expired


@dataclass(frozen=True)
class HistoryPosition:
    """Position of the next page: a snapshot, of whose changes ``skip`` have been returned.

    ``bases``: the snapshot that names the last bases found so far; they are the oldest known rows if earlier snapshots
    have expired.
    """

    reference: ManifestReference
    skip: int = 0
    bases: ManifestReference | None = None


@dataclass(frozen=True)
class Expired:
    """The history before ``since`` has expired: ``missing`` is the error for snapshot ``at``."""

    since: EpochKey
    at: EpochKey
    missing: FileMissing


@dataclass(frozen=True)
class HistoryPage:
    """A page of a history. ``following``: position of the next page; ``None`` at the end. ``expired``: set if the end
    is not the beginning of the key."""

    changes: tuple[KeyChange, ...]
    following: HistoryPosition | None
    expired: Expired | None = None


def history_of_key(store: SnapshotStore, table: str, key: Key, start: HistoryPosition, limit: int) -> HistoryPage:
    """At most ``limit`` changes of a full key, or of all entries of an operator's key, from ``start`` back.

    Raises ``FileMissing``, ``FileCorrupt``; ``NotFound`` for an unknown state table; ``InvalidKey``.
    """
    walk = KeyWalk(store, table, key, start.reference, start.bases)
    steps: list[Step] = []
    writes = 0
    gap: Gap | None = None
    for found in walk:
        if isinstance(found, Gap):
            gap = found
            break
        steps.append(found)
        writes += len(found.writes)
        if writes >= limit + start.skip or len(steps) >= MOST_EPOCHS:
            break
    if gap is None:
        end = walk.before(steps[-1].manifest)
        return _page(walk, steps, walk.rows_at(end), start.skip, limit, end)
    bases = walk.bases
    if bases is None or bases.at.epoch < gap.key.epoch:
        raise gap.missing
    known = [step for step in steps if step.reference.epoch > bases.at.epoch]
    page = _page(walk, known, walk.rows_in(bases), start.skip, limit, None)
    if page.following is not None:
        return page
    return HistoryPage(page.changes, None, Expired(bases.at, gap.key, gap.missing))


def _page(
    walk: KeyWalk,
    steps: Sequence[Step],
    before: Sequence[KeyRow],
    skip: int,
    limit: int,
    end: ManifestReference | None,
) -> HistoryPage:
    """A page of changes. ``before``: rows before the oldest step, at the snapshot ``end``."""
    bases = None if walk.bases is None else walk.bases.named_by
    by_step = _changes(steps, before)
    entries: list[KeyChange] = []
    for step, changes in zip(steps, by_step, strict=True):
        first = skip if step is steps[0] else 0
        room = limit - len(entries)
        entries += changes[first : first + room]
        if len(changes) - first > room:
            return HistoryPage(tuple(entries), HistoryPosition(step.reference, first + room, bases))
    return HistoryPage(tuple(entries), None if end is None else HistoryPosition(end, 0, bases))


def _changes(steps: Sequence[Step], before: Sequence[KeyRow]) -> list[list[KeyChange]]:
    """Changes of each step, in key order."""
    rows = {row.encoded: row for row in before}
    found: list[list[KeyChange]] = []
    for step in reversed(steps):
        changes = []
        written = {write.encoded: write for write in step.writes}
        others = (row for row in rows.values() if row.values is not None and row.encoded not in written)
        gone = (row for row in seen_at(step.manifest, others) if row.expired)
        for write in [*seen_at(step.manifest, step.writes), *gone]:
            change = KeyChange(step.manifest, rows.get(write.encoded), write)
            if differs(change.old, change.new, write.table.hidden):
                changes.append(change)
            rows[write.encoded] = write
        found.append(sorted(changes, key=lambda change: change.after.encoded))
    return found[::-1]


def differs(old: Row | None, new: Row | None, ignored: Container[str] = ()) -> bool:
    """True if two rows of one key differ on their common columns. NaNs are equal."""
    if old is None or new is None:
        return old is not new
    return any(
        old[name] != new[name] and not (old[name] != old[name] and new[name] != new[name])
        for name in old
        if name in new and name not in ignored
    )
