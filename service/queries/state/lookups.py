"""Look-ups for the routes: find table and epoch, and return the parts of the answer as JSON."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import InvalidInput, NotFound, NotYetCommitted, StoreUnavailable
from epochal.service.domain.snapshots import ApplicationHead, ReadFrom, Snapshots, expiring
from epochal.service.queries.state.instance_lookups import InstanceFormat, instance_format
from epochal.service.queries.state.readers import CommittedReader, PastReader, Reader, UncommittedReader, past_table
from epochal.service.queries.state.window_lookups import WindowFormat, window_format
from epochal.service.runtime.replicas.follower import FollowedTable
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.service.runtime.replicas.serving import ServedReplicas
from epochal.snapshots.lineage import clock_of
from epochal.snapshots.reader import SnapshotReader
from epochal.state.table import StateTable

_POLL_SECONDS = 0.05
_BRIEF_SECONDS = 0.5
"""Time for a small replica to be built. Afterwards look-ups read the files of the snapshot."""
_KEYS_AT_ONCE = 5000
"""Number of keys of a batch that are processed before other threads get a turn."""


class KeyNotFound(NotFound):
    """There is no row with this key."""

    slug = "key-not-found"


class PointAnswer(NamedTuple):
    """``content`` is JSON: the value's object, or the list of entries for the operator's key alone.

    ``instances``, also JSON, for a key of partial state: the value of each instance; ``content`` is then the merged
    value, or ``null``. ``since``: the table's ``partial_since`` at the snapshot; the entity tag includes it.
    """

    key: bytes
    at: EpochKey
    content: bytes
    is_list: bool
    etag: str
    instances: bytes | None = None
    since: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """``values``: a JSON array in parts (concatenated elements), an object or ``null`` for each key."""

    at: EpochKey
    values: list[bytes]
    since: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """``rows``: a row for each key, as in :meth:`RowFormat.shown_rows`."""

    at: EpochKey
    rows: pa.Table
    since: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FoundColumns:
    """``there``: for each key whether a row exists; ``rows``: the values of existing rows, in order."""

    at: EpochKey
    there: npt.NDArray[np.bool_]
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A state table and the status of its replica; ``rows`` and ``at`` are ``None`` for tables without one."""

    table: StateTable
    rows: int | None
    at: EpochKey | None


class Lookups:
    """Raises ``NotFound`` (application, table, epoch, savepoint), ``KeyNotFound``, ``InvalidKey``,
    ``NotYetCommitted``, ``SnapshotExpired``, ``FileMissing``, ``FileCorrupt``, ``StoreUnavailable``."""

    def __init__(self, replicas: ServedReplicas, snapshots: Snapshots) -> None:
        self._replicas = replicas
        self._snapshots = snapshots

    async def point(self, application: str, table: str, path_key: str, read: ReadFrom) -> PointAnswer:
        """Look up one key, percent-encoded as in the URL path."""
        format, reader = await self.reader(application, table, read)
        answer = await self._point(application, table, path_key, format, reader)
        since = reader.since(answer.at)
        return answer._replace(since=since, etag=partial_etag(answer.etag, since)) if since else answer

    async def _point(
        self, application: str, table: str, path_key: str, format: RowFormat, reader: Reader
    ) -> PointAnswer:
        windows = window_format(format.table)
        if windows is not None:
            return await asyncio.to_thread(self._windows, application, windows, reader, path_key)
        instances = instance_format(format.table)
        if instances is not None and (own := instances.of_all(path_key)) is not None:
            return await asyncio.to_thread(self._instances, application, instances, reader, own, path_key)
        key = format.path_key(path_key)
        encoded = format.encode_key(key)
        if format.is_whole(key):
            found = await asyncio.to_thread(reader.get_many, [encoded])
            value = found.values[0]
            if value is None:
                raise KeyNotFound(
                    f"State {table!r} of {application!r} has no key {path_key!r} at epoch {found.at.epoch}."
                )
            return PointAnswer(format.key_json(key), found.at, format.value_json(value), False, etag(value))
        scanned = await asyncio.to_thread(reader.scan, encoded)
        if not scanned.rows:
            raise KeyNotFound(
                f"State {table!r} of {application!r} has no key {path_key!r} at epoch {scanned.at.epoch}."
            )
        content = await asyncio.to_thread(format.entries_json, scanned.rows)
        whole = b"".join(part for row in scanned.rows for part in row)
        return PointAnswer(format.key_json(key), scanned.at, content, True, etag(whole))

    def _windows(self, application: str, format: WindowFormat, reader: Reader, path_key: str) -> PointAnswer:
        """The open windows of one key, or one of them, merged from the panes of the key. May block."""
        key = format.keys.path_key(path_key)
        fired = partial(self._fire, application, format)
        if format.is_one(key):
            batch = reader.get_many(format.panes_of(key))
            at, found = batch.at, format.windows(format.panes_of(key), batch.values, fired(batch.at))
        else:
            scanned = reader.scan(format.owner(key))
            at, rows = scanned.at, scanned.rows
            found = format.windows([key for key, _ in rows], [row for _, row in rows], fired(at))
        windows = format.chosen(key, found)
        if not windows:
            raise KeyNotFound(
                f"State {format.table.id!r} of {application!r} has no open window of {path_key!r} at epoch {at.epoch}."
            )
        content = orjson.dumps(format.value(windows[0]) if format.is_one(key) else windows)
        return PointAnswer(format.keys.key_json(key), at, content, not format.is_one(key), etag(content))

    def _instances(
        self, application: str, format: InstanceFormat, reader: Reader, key: Sequence[Any], path_key: str
    ) -> PointAnswer:
        """One key in all instances. May block."""
        at, (rows,) = self._in_instances(application, format, reader, [key])
        instances = format.instances(rows)
        if not instances:
            raise KeyNotFound(
                f"No instance of state {format.table.id!r} of {application!r} has a key {path_key!r} at epoch "
                f"{at.epoch}."
            )
        content, each = orjson.dumps(format.together([rows])[0]), orjson.dumps(instances)
        return PointAnswer(format.key_json(key), at, content, False, etag(content + each), each)

    def _batch_of_instances(
        self, application: str, format: InstanceFormat, reader: Reader, keys: Sequence[dict[str, Any]]
    ) -> BatchAnswer:
        """Keys without an instance number; values are merged. May block."""
        at, rows = self._in_instances(application, format, reader, [format.key_of(key) for key in keys])
        return BatchAnswer(at, [orjson.dumps(value) for value in format.together(rows)])

    def _in_instances(
        self, application: str, format: InstanceFormat, reader: Reader, keys: Sequence[Sequence[Any]]
    ) -> tuple[EpochKey, list[list[bytes | None]]]:
        """For each key its rows in all instances of the snapshot, in order."""
        while True:
            at = reader.get_many([]).at
            reference = self._snapshots.reference(application, at)
            number = format.number_in(self._replicas.store.read_manifest(reference))
            format.check_number(keys, number)
            found = reader.get_many([encoded for key in keys for encoded in format.keys(key, number)])
            if found.at == at:  # otherwise the replica has advanced, perhaps to other instances
                rows = iter(found.values)
                return at, [list(islice(rows, number)) for _ in keys]

    def _batch_of_windows(
        self, application: str, format: WindowFormat, reader: Reader, keys: Sequence[dict[str, Any]]
    ) -> BatchAnswer:
        """Read all panes of all requested windows in one call. May block."""
        named = [format.key_of(key) for key in keys]
        format.check_number(named)
        panes = [format.panes_of(key) for key in named]
        found = reader.get_many(list(chain.from_iterable(panes)))
        fire, values, answers = self._fire(application, format, found.at), iter(found.values), []
        for key, mine in zip(named, panes, strict=True):
            windows = format.chosen(key, format.windows(mine, list(islice(values, len(mine))), fire))
            answers.append(orjson.dumps(format.value(windows[-1]) if windows else None))
        return BatchAnswer(found.at, answers)

    def _fire(self, application: str, format: WindowFormat, at: EpochKey) -> int | None:
        """The watermark up to which windows have closed at a snapshot."""
        reference = self._snapshots.reference(application, at)
        clock = clock_of(self._replicas.store.read_manifest(reference), format.table.id)
        return None if clock is None else clock.event

    async def batch(self, application: str, table: str, keys: Sequence[dict[str, Any]], read: ReadFrom) -> BatchAnswer:
        """Look up several keys, each an object by column name; all values are from one epoch."""
        format, reader = await self.reader(application, table, read)
        answer = await self._batch(application, format, reader, keys)
        since = reader.since(answer.at)
        return replace(answer, since=since) if since else answer

    async def _batch(
        self, application: str, format: RowFormat, reader: Reader, keys: Sequence[dict[str, Any]]
    ) -> BatchAnswer:
        windows = window_format(format.table)
        if windows is not None:
            return await asyncio.to_thread(self._batch_of_windows, application, windows, reader, keys)
        instances = instance_format(format.table)
        if instances is not None and instances.names_all(keys):
            return await asyncio.to_thread(self._batch_of_instances, application, instances, reader, keys)
        return await asyncio.to_thread(_batch, format, reader, keys)

    async def batch_columns(
        self, application: str, table: str, keys: Sequence[dict[str, Any]], read: ReadFrom
    ) -> BatchColumns:
        """Like :meth:`batch`, as columns (:meth:`RowFormat.shown_rows`). Also raises ``InvalidInput``: merged values
        (windows, all instances of partial state) are available only as objects."""
        format, reader = await self.reader(application, table, read)
        instances = instance_format(format.table)
        if window_format(format.table) is not None or (instances is not None and keys and instances.names_all(keys)):
            raise InvalidInput(
                f"Look-ups of state {table!r} merge several rows for each key and have no columnar form: request JSON."
            )
        return await asyncio.to_thread(_batch_columns, format, reader, keys)

    async def columns(self, application: str, table: str, keys: pa.Table, read: ReadFrom) -> FoundColumns:
        """Look up several rows as columns; ``keys``: the columns of the address. All values are from one epoch."""
        format, reader = await self.reader(application, table, read)
        return await asyncio.to_thread(_columns, format, reader, keys)

    async def tables(self, application: str) -> list[TableStatus]:
        """All state tables of the latest committed epoch; none before the first commit."""
        head = await asyncio.to_thread(self._snapshots.head, application)
        if head.committed is None:
            return []
        await self._replicas.wait(lambda: self._is_followed(application), _BRIEF_SECONDS)
        return await asyncio.to_thread(self._tables, application, head.committed)

    def _tables(self, application: str, committed: ManifestReference) -> list[TableStatus]:
        followed = self._replicas.application(application)
        replicated = {} if followed is None else dict(followed.tables)
        found = [TableStatus(item.table, *item.replica.count()) for item in replicated.values()]
        declared = self._replicas.store.read_manifest(committed).tables
        return [*found, *(TableStatus(table, None, None) for table in declared if table.id not in replicated)]

    async def reader(self, application: str, table: str, read: ReadFrom) -> tuple[RowFormat, Reader]:
        """Reader and format of the rows of a state table."""
        if read.of_the_past:
            return await asyncio.to_thread(self._past, application, table, read)
        deadline = time.monotonic() + read.wait_seconds
        followed = self._replicas.table(application, table) or await self._found(application, table, read.wait_seconds)
        if followed is None:
            return await self._in_files(application, table, read, deadline)
        if read.isolation == "read_uncommitted":
            return followed.format, await self._uncommitted(application, followed, read.min_epoch, deadline)
        if read.min_epoch is not None:
            await self._wait_for(application, read.min_epoch, deadline)
            followed = self._replicas.table(application, table) or followed
        return followed.format, CommittedReader(followed)

    def _past(self, application: str, table: str, read: ReadFrom) -> tuple[RowFormat, Reader]:
        return self.past(application, table, read.resolve(self._snapshots, application))

    def past(self, application: str, table: str, reference: ManifestReference) -> tuple[RowFormat, Reader]:
        """Like :meth:`reader`, for one snapshot. May block."""
        snapshot = SnapshotReader(self._replicas.store, reference)
        with expiring(self._snapshots, reference.key):
            declared = past_table(snapshot, application, table)
        return RowFormat(declared), PastReader(snapshot, declared, self._snapshots)

    async def _found(self, application: str, table: str, wait_seconds: float) -> FollowedTable | None:
        """A table that was not followed yet; ``None`` if it still has no replica."""
        await asyncio.to_thread(self._head, application)

        def there() -> bool:
            return self._replicas.table(application, table) is not None or self._is_followed(application)

        await self._replicas.wait(there, min(wait_seconds, _BRIEF_SECONDS))
        return self._replicas.table(application, table)

    def _is_followed(self, application: str) -> bool:
        """True if the replicas of an application exist, or cannot be built."""
        seen = self._replicas.application(application)
        return seen is not None and (seen.at is not None or seen.problem is not None)

    def _head(self, application: str) -> ApplicationHead:
        """Raises ``NotFound`` before the first commit."""
        head = self._snapshots.head(application)
        if head.committed is None:
            raise NotFound(f"Application {application!r} has not committed an epoch yet and has no state.")
        return head

    async def _latest(
        self, application: str, isolation: str, min_epoch: int | None, deadline: float
    ) -> tuple[ApplicationHead, ManifestReference]:
        """The newest committed snapshot, or the newest prepared one for ``read_uncommitted``, once it has reached
        ``min_epoch``."""
        uncommitted = isolation == "read_uncommitted"
        while True:
            head = await asyncio.to_thread(self._head, application)
            latest = head.prepared[-1] if uncommitted and head.prepared else head.committed
            assert latest is not None  # the application has committed an epoch
            if min_epoch is None or latest.epoch >= min_epoch:
                return head, latest
            if time.monotonic() >= deadline:
                raise NotYetCommitted(
                    f"Epoch {min_epoch} of {application!r} is not {'prepared' if uncommitted else 'committed'} yet; "
                    f"the latest is {latest.epoch}. Wait longer."
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _in_files(
        self, application: str, table: str, read: ReadFrom, deadline: float
    ) -> tuple[RowFormat, Reader]:
        """Reader of the files of the latest epoch: the table has no replica, its replica is being built, or has
        failed."""
        head, latest = await self._latest(application, read.isolation, read.min_epoch, deadline)
        seen = self._replicas.application(application)
        large = () if seen is None else seen.unreplicated
        if head.committed is not None and all(each.id != table for each in large):
            self._replicas.answered(application, head.branch, head.committed.epoch)
        return await asyncio.to_thread(self._of_head, application, table, latest)

    def _of_head(self, application: str, table: str, latest: ManifestReference) -> tuple[RowFormat, Reader]:
        declared = self._replicas.store.read_manifest(latest).tables
        if table not in {each.id for each in declared}:
            names = ", ".join(sorted(each.id for each in declared if each.queryable)) or "none"
            raise NotFound(f"Application {application!r} has no state {table!r}; it has {names}.")
        return self.past(application, table, latest)

    async def _wait_for(self, application: str, epoch: int, deadline: float) -> None:
        def there() -> bool:
            seen = self._replicas.application(application)
            return seen is not None and seen.at is not None and seen.at.epoch >= epoch

        if not await self._replicas.wait(there, max(0.0, deadline - time.monotonic())):
            seen = self._replicas.application(application)
            at = seen.at.epoch if seen is not None and seen.at is not None else None
            if seen is not None and isinstance(seen.problem, StoreUnavailable):
                raise seen.problem
            if seen is not None and seen.problem is not None:
                raise NotYetCommitted(
                    f"The replicas of {application!r} are at epoch {at} and cannot advance: {seen.problem.message}"
                )
            raise NotYetCommitted(
                f"Epoch {epoch} of {application!r} is not committed yet; the latest is {at}. Wait longer."
            )

    async def _uncommitted(
        self, application: str, followed: FollowedTable, min_epoch: int | None, deadline: float
    ) -> Reader:
        _, latest = await self._latest(application, "read_uncommitted", min_epoch, deadline)
        return UncommittedReader(followed, latest, self._replicas.store, self._replicas.overlays)


def etag(content: bytes) -> str:
    """Weak, since the answer also has the epoch, which advances while the value stays."""
    return f'W/"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'


def partial_etag(etag_of_value: str, since: Mapping[str, int]) -> str:
    """Tag of a value with ``since``, which an upgrade can change while the value stays."""
    return etag(etag_of_value.encode() + orjson.dumps(since))


def _encoded(format: RowFormat, keys: Sequence[dict[str, Any]]) -> list[bytes]:
    encoded: list[bytes] = []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        encoded += format.encode_keys(keys[start : start + _KEYS_AT_ONCE])
    return encoded


def _batch_columns(format: RowFormat, reader: Reader, keys: Sequence[dict[str, Any]]) -> BatchColumns:
    found = reader.get_many(_encoded(format, keys))
    return BatchColumns(found.at, format.shown_rows(found.values), reader.since(found.at))


def _batch(format: RowFormat, reader: Reader, keys: Sequence[dict[str, Any]]) -> BatchAnswer:
    found = reader.get_many(_encoded(format, keys))
    starts = range(0, len(keys), _KEYS_AT_ONCE)
    return BatchAnswer(
        found.at, [format.values_json(found.values[start : start + _KEYS_AT_ONCE])[1:-1] for start in starts]
    )


def _columns(format: RowFormat, reader: Reader, keys: pa.Table) -> FoundColumns:
    found = reader.get_many(format.encoded(keys))
    there = np.array([value is not None for value in found.values], bool)
    return FoundColumns(found.at, there, format.decoded([value for value in found.values if value is not None]))
