"""Scans: the rows of a state table in key order, page by page, all from one epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.service.domain.pages import PageRequest, check_cursor, decoded_key, encoded_key
from epochal.service.domain.snapshots import ReadFrom, Snapshots
from epochal.service.queries.state.lookups import Lookups
from epochal.service.queries.state.readers import Reader, Scanned, Section
from epochal.service.queries.state.window_lookups import pane_note
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.service.runtime.replicas.serving import ServedReplicas
from epochal.state.key_codec import FORM
from epochal.wire.state import Scan, ScannedRow


@dataclass(frozen=True, slots=True)
class ScannedColumns:
    """A page as columns, with its metadata."""

    at: EpochKey
    rows: pa.Table
    next_cursor: str | None
    note: str | None
    since: Mapping[str, int]


class Scans:
    """Raises the errors of :class:`epochal.service.queries.state.lookups.Lookups`."""

    def __init__(self, replicas: ServedReplicas, snapshots: Snapshots) -> None:
        self._replicas = replicas
        self._snapshots = snapshots
        self._lookups = Lookups(replicas, snapshots)

    async def scan(
        self, application: str, table: str, prefix: str, read: ReadFrom, page: PageRequest, begin: str = ""
    ) -> Scan:
        """Rows whose key begins with ``prefix``: leading key columns as in a path, the last one optionally with a
        ``*``. ``begin``: leading key columns of the first row, which begin with the prefix.

        ``read`` chooses the epoch of the first page; the next pages are of the same epoch.
        """
        format, found, since = await self._found(application, table, prefix, read, page, begin)
        return await asyncio.to_thread(_objects, table, format, found, since, read, page)

    async def columns(
        self, application: str, table: str, prefix: str, read: ReadFrom, page: PageRequest
    ) -> ScannedColumns:
        """Like :meth:`scan`, as columns (:meth:`RowFormat.row_columns`)."""
        format, found, since = await self._found(application, table, prefix, read, page)
        return await asyncio.to_thread(_columns, format, found, since, page)

    async def _found(
        self, application: str, table: str, prefix: str, read: ReadFrom, page: PageRequest, begin: str = ""
    ) -> tuple[RowFormat, Scanned, Mapping[str, int]]:
        """Up to one row more than the page; and ``partial_since`` of their snapshot."""
        after = _position(page)
        key: bytes | None = None
        if after is None:
            format, reader = await self._lookups.reader(application, table, read)
            # The encoding of leading columns precedes that of every key that begins with them.
            key = format.key_prefix(begin)[0] if begin else None
        else:
            key = after[2]
            format, reader = await self._again(application, table, EpochKey(after[0], after[1]), read)
        section = _section(format, prefix, key, page.limit + 1)
        found = await asyncio.to_thread(reader.page, section)
        if after is not None and found.at != EpochKey(after[0], after[1]):
            # The replica has advanced: read that epoch from its snapshot.
            format, reader = await self._past(application, table, EpochKey(after[0], after[1]), read)
            found = await asyncio.to_thread(reader.page, section)
        return format, found, reader.since(found.at)

    async def _again(self, application: str, table: str, at: EpochKey, read: ReadFrom) -> tuple[RowFormat, Reader]:
        seen = self._replicas.application(application)
        if seen is not None and seen.at == at and table in seen.tables:
            return await self._lookups.reader(application, table, ReadFrom())
        return await self._past(application, table, at, read)

    async def _past(self, application: str, table: str, at: EpochKey, read: ReadFrom) -> tuple[RowFormat, Reader]:
        reference = await asyncio.to_thread(self._reference, application, at, read)
        return await asyncio.to_thread(self._lookups.past, application, table, reference)

    def _reference(self, application: str, at: EpochKey, read: ReadFrom) -> ManifestReference:
        """The snapshot of a cursor, which must be the application's and exist; it may be uncommitted."""
        if read.isolation == "read_uncommitted":
            return self._snapshots.reference(application, at)
        reference = self._snapshots.resolve(application, epoch=at.epoch)
        check_cursor(reference.key == at)
        return reference


def _section(format: RowFormat, prefix: str, after: bytes | None, limit: int) -> Section:
    encoded, columns = format.key_prefix(prefix)
    owner = format.owner_of(encoded) if columns >= len(format.table.key) else None
    return Section(encoded, after, limit, owner)


def _objects(
    table: str, format: RowFormat, found: Scanned, since: Mapping[str, int], read: ReadFrom, page: PageRequest
) -> Scan:
    return Scan(
        table=table,
        branch=found.at.branch,
        epoch=found.at.epoch,
        isolation=read.isolation,
        items=[ScannedRow(**row) for row in format.row_objects(found.rows[: page.limit])],
        next_cursor=_cursor(found, page),
        since=dict(since) or None,
        note=pane_note(format.table),
    )


def _columns(format: RowFormat, found: Scanned, since: Mapping[str, int], page: PageRequest) -> ScannedColumns:
    rows = format.row_columns(found.rows[: page.limit])
    return ScannedColumns(found.at, rows, _cursor(found, page), pane_note(format.table), since)


def _cursor(found: Scanned, page: PageRequest) -> str | None:
    """Cursor of the next page."""
    if len(found.rows) <= page.limit:
        return None
    return page.following(found.at.branch, found.at.epoch, FORM, encoded_key(found.rows[page.limit - 1][0]))


def _position(page: PageRequest) -> tuple[str, int, bytes] | None:
    """Branch, epoch and encoded key after which the page begins."""
    after = page.after(str, int, int, str)
    if after is None:
        return None
    branch, epoch, form, key = after
    check_cursor(form == FORM)  # a cursor of another version may differ
    return branch, epoch, decoded_key(key)
