"""Differences between two snapshots: code, parameters, input, and the rows of every state table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.errors import NotFound, SchemaError
from epochal.service.catalog.database import Database
from epochal.service.catalog.snapshots import SnapshotRepository
from epochal.service.domain.pages import PageRequest, decoded_key, encoded_key
from epochal.service.domain.snapshots import SnapshotOrigin, Snapshots, expiring
from epochal.service.queries.state.readers import key_object, value_object
from epochal.service.queries.state.window_lookups import pane_note
from epochal.snapshots.difference import TableDifference, table_difference
from epochal.snapshots.immutable_cache import SizedCache
from epochal.snapshots.lineage import Route, find_route
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable
from epochal.wire.history import (
    DatedChange,
    DiffPath,
    DiffPaths,
    DiffRow,
    DiffRows,
    DiffSide,
    ParameterDiff,
    SnapshotDiff,
    SourceRange,
    TableDiff,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT_BYTES = 256 << 20
_kept: SizedCache[TableDifference] = SizedCache(_KEPT_BYTES)
"""Differences by the manifests' checksums, cached for the next page."""


@dataclass(frozen=True)
class _Pair:
    left: SnapshotReader
    right: SnapshotReader
    route: Route | None


class DiffService:
    """May block; call from threads. Raises ``NotFound``, ``InvalidInput`` (invalid names, unrelated snapshots),
    ``SnapshotExpired``, ``FileMissing``, ``FileCorrupt``; ``SchemaError`` for rows that cannot be compared."""

    def __init__(self, database: Database, snapshots: Snapshots, store: SnapshotStore) -> None:
        self._database = database
        self._snapshots = snapshots
        self._store = store

    def summary(self, application: str, left: str, right: str) -> SnapshotDiff:
        """Names as in :meth:`epochal.service.catalog.snapshots.SnapshotRepository.named`."""
        with self._pair(application, left, right) as pair:
            manifests = pair.left.manifest, pair.right.manifest
            origins = self._snapshots.origins([manifest.key for manifest in manifests])
            source, target = (_side(manifest, origins.get(manifest.key)) for manifest in manifests)
            route = pair.route
            return SnapshotDiff(
                source=source,
                target=target,
                ancestor=None if route is None or route.ancestor is None else route.ancestor.key,
                between=None if route is None else DiffPaths(source=_done(route.left), target=_done(route.right)),
                code="same" if source.artifact == target.artifact else "different",
                parameters=_parameters(source, target),
                tables=[_counts(pair, id) for id in _tables(*manifests)],
            )

    def rows(self, application: str, left: str, right: str, table: str, page: PageRequest) -> DiffRows:
        """Changed rows of one state table."""
        after = page.after(str)
        with self._pair(application, left, right) as pair:
            found = _difference(pair, table)
            if not any(declared.queryable for declared in (found.before, found.after) if declared is not None):
                raise NotFound(f"State {table!r} of {application!r} is not queryable; declare it with queryable=True.")
            first = 0 if after is None else bisect_right(found.keys, decoded_key(after[0]), key=lambda key: key.as_py())
            end = min(first + page.limit, len(found.keys))
            last = encoded_key(found.keys[end - 1].as_py()) if end < len(found.keys) else None
            return DiffRows(
                table=table,
                source=pair.left.reference.key,
                target=pair.right.reference.key,
                compared=list(found.compared),
                items=rows_of(found, first, end),
                next_cursor=None if last is None else page.following(last),
                since=_since(found),
                note=_pane_note(found),
            )

    @contextmanager
    def _pair(self, application: str, left: str, right: str) -> Iterator[_Pair]:
        with self._database.reading() as session:
            ours, theirs = (SnapshotRepository(session).named(application, name) for name in (left, right))
        with expiring(self._snapshots, ours.key, theirs.key):
            yield self._paired(ours, theirs)

    def _paired(self, left: ManifestReference, right: ManifestReference) -> _Pair:
        route = find_route(self._store, left, right)
        return _Pair(SnapshotReader(self._store, left), SnapshotReader(self._store, right), route)


def _difference(pair: _Pair, table: str) -> TableDifference:
    place = (pair.left.reference.sha256, pair.right.reference.sha256, table)
    found = _kept.get(place)
    if found is None:
        found = table_difference(pair.left, pair.right, pair.route, table)
        _kept.put(place, found, found.nbytes)
    return found


def _side(manifest: Manifest, origin: SnapshotOrigin | None) -> DiffSide:
    return DiffSide(
        application=manifest.application if origin is None else origin.application,
        branch=manifest.branch,
        epoch=manifest.epoch,
        committed_at=None if origin is None else origin.committed_at,
        version=None if origin is None else origin.version,
        artifact=manifest.artifact,
        filename=None if origin is None else origin.filename,
        parameters=manifest.parameters,
        parallelism=manifest.parallelism,
        parallelisms=manifest.parallelisms,
    )


def _parameters(left: DiffSide, right: DiffSide) -> list[ParameterDiff]:
    names = sorted({*left.parameters, *right.parameters})
    pairs = [(name, left.parameters.get(name), right.parameters.get(name)) for name in names]
    return [ParameterDiff(name=name, source=was, target=now) for name, was, now in pairs if was != now]


def _done(newest_first: Sequence[Manifest]) -> DiffPath:
    slices: dict[str, SourceRange] = {}
    for manifest in reversed(newest_first):
        for source, slice in manifest.slices.items():
            before = slices.get(source)
            start = slice.start if before is None else before.start
            rows = slice.rows if before is None else _sum(before.rows, slice.rows)
            epochs = 1 if before is None else before.epochs + 1
            slices[source] = SourceRange(start=start, end=slice.end, rows=rows, epochs=epochs)
    changes = [
        DatedChange(branch=manifest.branch, epoch=manifest.epoch, change=change)
        for manifest in newest_first
        for change in manifest.changes
    ]
    return DiffPath(epochs=len(newest_first), slices=slices, changes=changes)


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _tables(left: Manifest, right: Manifest) -> list[str]:
    return sorted({table.id for manifest in (left, right) for table in manifest.tables if table.durable})


def _counts(pair: _Pair, id: str) -> TableDiff:
    try:
        found = _difference(pair, id)
    except SchemaError as error:
        return TableDiff(
            table=id,
            added=None,
            changed=None,
            deleted=None,
            expired=None,
            compared=[],
            not_compared=[],
            note=error.message,
        )
    columns = [{column.name for column in side.visible} for side in (found.before, found.after) if side is not None]
    one_sided = set.symmetric_difference(*columns) if len(columns) == 2 else set()
    note = f"compared by common columns; without {', '.join(sorted(one_sided))}" if one_sided else None
    if found.before is None or found.after is None:
        where = pair.left.reference.key if found.before is None else pair.right.reference.key
        note = f"not declared at {where}"
    of_panes = _pane_note(found)
    return TableDiff(
        table=id,
        added=found.added,
        changed=found.changed,
        deleted=found.deleted,
        expired=found.gone,
        compared=list(found.compared),
        not_compared=sorted(one_sided),
        since=_since(found),
        note="; ".join(said for said in (note, of_panes) if said) or None,
    )


def _since(found: TableDifference) -> dict[str, int] | None:
    """``partial_since`` of the second snapshot."""
    return None if found.after is None else dict(found.after.partial_since) or None


def _pane_note(found: TableDifference) -> str | None:
    table = found.after or found.before
    return None if table is None else pane_note(table)


Row = dict[str, Any]


def rows_of(found: TableDifference, first: int, end: int) -> list[DiffRow]:
    """Rows from position ``first`` up to ``end``, in key order."""
    table = found.after or found.before
    assert table is not None  # at least one of the two snapshots declares it
    keys = KeyCodec(table.address_schema).decode(found.keys[first:end]).to_pylist()
    old = _values(found.before, found.old.slice(first, end - first), found.had[first:end].tolist())
    new = _values(found.after, found.new.slice(first, end - first), found.has[first:end].tolist())
    expired = found.expired[first:end].tolist()
    return [
        DiffRow(kind="expired" if is_gone else _kind(was, now), key=key_object(table, key), old=was, new=now)
        for key, was, now, is_gone in zip(keys, old, new, expired, strict=True)
    ]


def _values(table: StateTable | None, rows: pa.Table, there: list[bool]) -> list[Row | None]:
    if table is None:
        return [None] * rows.num_rows
    return [
        value_object(table, row) if is_there else None for row, is_there in zip(rows.to_pylist(), there, strict=True)
    ]


def _kind(old: Row | None, new: Row | None) -> Literal["added", "changed", "deleted"]:
    return "added" if old is None else "deleted" if new is None else "changed"
