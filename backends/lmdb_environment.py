"""One LMDB environment: the rows of one key group of an operator's state tables, at the epoch that its mark names.

A cache: written without sync, shared by the Python workers of a machine, and emptied or deleted when in doubt. The mark
is written in the same transaction as the rows, so it never names a later epoch than the rows contain.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, repeat
from pathlib import Path
from typing import Any, cast

import lmdb

from epochal.backends.boot_folders import throw_away
from epochal.backends.catch_up import Step
from epochal.backends.encoded_view import Bound, FoundRows
from epochal.backends.lmdb_long_keys import KEPT, any_long, is_long, joined, shortened, split
from epochal.backends.pruning import Pruning, is_due
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import end_of_prefix
from epochal.errors import SnapshotError, StorageFull

FIRST_MAP_BYTES = 1 << 30
"""Initial map size: address space, not disk or memory. Doubled when the map is full."""
_MARK, _LEFT = b"mark", b"rows left in "
_PRUNED_AT_ONCE = 16_384
_READERS = 126
_PAGE_BYTES, _READER_BYTES = 4096, 64
_DAMAGED = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.PanicError,
    lmdb.PageNotFoundError,
    lmdb.IncompatibleError,
)


class CacheDamaged(SnapshotError):
    """A local store on an executor was damaged and has been deleted; it is rebuilt from the snapshot."""

    slug = "cache-damaged"


class Environment:
    """An open environment. LMDB allows at most one object per folder and process."""

    def __init__(self, folder: Path, tables: Iterable[str]) -> None:
        self.folder = folder
        self.open_reads = 0
        with self.errors():
            folder.mkdir(parents=True, exist_ok=True)
            self._environment = _open(folder)
            self._databases = {table: self._environment.open_db(table.encode()) for table in tables}
        self._identity = _identity(folder)

    @property
    def is_current(self) -> bool:
        """Return whether the folder still holds the opened environment; another process may have deleted it."""
        return _identity(self.folder) == self._identity

    def read(self) -> Read:
        """Open a stable view: an MVCC read transaction."""
        with self.errors():
            try:
                transaction = self._environment.begin()
            except lmdb.MapResizedError:  # another process has enlarged the map
                self._resize(0)
                transaction = self._environment.begin()
            return Read(self, transaction, self._databases)

    def apply(self, step: Step, group: int, before: EpochKey | None) -> bool:
        """Apply one step. Returns ``False`` if the mark is no longer ``before``: another worker has moved it."""
        return self._with_room(lambda: self._apply(step, group, before))

    def prune(self, by_table: Mapping[str, Pruning], at: EpochKey | None) -> bool:
        """Delete expired rows ``at`` the mark. Returns ``False``, without changes, if the mark has moved."""
        with self.errors(), self._environment.begin() as transaction:
            if not any(self._is_due(transaction, *item) for item in by_table.items()):
                return True
        return self._with_room(lambda: self._prune(by_table, at))

    def close(self) -> None:
        """Close the environment, unless views are open; then it closes with its last view."""
        if not self.open_reads:
            self._environment.close()

    def throw_away(self) -> None:
        """Delete the folder. Other processes keep their open environment until they next check the folder."""
        throw_away(self.folder)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate LMDB's errors; delete a damaged environment, so that the next attempt rebuilds it."""
        try:
            yield
        except _DAMAGED as error:
            self.throw_away()
            raise CacheDamaged(
                f"The local store {self.folder} was damaged ({error}) and has been deleted; it is rebuilt."
            ) from error
        except (lmdb.Error, OSError) as error:
            if isinstance(error, lmdb.DiskError) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(
                    f"There is no space left for the local store {self.folder}. No data is lost: free some space; the "
                    "epoch is rerun."
                ) from error
            raise SnapshotError(f"The local store {self.folder} cannot be used: {error}.") from error

    def _apply(self, step: Step, group: int, before: EpochKey | None) -> bool:
        with self._environment.begin(write=True) as transaction:
            if _decode_mark(transaction.get(_MARK)) != before:
                return False
            for table, database in self._databases.items():
                if step.afresh:
                    transaction.drop(database, delete=False)
                    transaction.delete(_LEFT + table.encode())
                for keys, values in step.of_group(table, group):
                    _write(transaction, database, keys, values)
            if step.key is None:
                transaction.delete(_MARK)
            else:
                transaction.put(_MARK, f"{step.key.epoch} {step.key.branch}".encode())
        return True

    def _prune(self, by_table: Mapping[str, Pruning], at: EpochKey | None) -> bool:
        with self._environment.begin(write=True) as transaction:
            if _decode_mark(transaction.get(_MARK)) != at:
                return False
            for table, pruning in by_table.items():
                database = self._databases[table]
                if pruning.before is not None:
                    _delete_before(transaction, database, pruning.before)
                    continue
                if self._is_due(transaction, table, pruning):
                    _delete_gone(transaction, database, pruning)
                    transaction.put(_LEFT + table.encode(), b"%d" % transaction.stat(database)["entries"])
        return True

    def _is_due(self, transaction: lmdb.Transaction, table: str, pruning: Pruning) -> bool:
        database = self._databases[table]
        if pruning.before is None:
            rows, left = transaction.stat(database)["entries"], transaction.get(_LEFT + table.encode())
            return is_due(rows, int(left or 0))
        with transaction.cursor(database) as cursor:
            return bool(cursor.first() and bytes(cursor.key()) < pruning.before)

    def _with_room(self, write: Callable[[], bool]) -> bool:
        while True:
            with self.errors():
                try:
                    return write()
                except lmdb.MapFullError:
                    self._resize(2 * int(self._environment.info()["map_size"]))
                except lmdb.MapResizedError:
                    self._resize(0)

    def _resize(self, map_bytes: int) -> None:
        if self.open_reads:  # LMDB would unmap the memory under open reads
            raise SnapshotError(
                f"The local store {self.folder} must grow, but is in use by readers; the epoch is rerun."
            )
        self._environment.set_mapsize(map_bytes)


class Read:
    """A stable view of an environment, until it is closed."""

    def __init__(self, environment: Environment, transaction: lmdb.Transaction, databases: dict[str, Any]) -> None:
        self._environment = environment
        self._transaction = transaction
        self._databases = databases
        self._open = True
        environment.open_reads += 1

    @property
    def mark(self) -> EpochKey | None:
        return _decode_mark(self._transaction.get(_MARK))

    def get_many(self, table: str, keys: Sequence[bytes]) -> Iterable[bytes | None]:
        """Return the value of each full key; ``None`` for a missing key."""
        get, database = self._transaction.get, repeat(self._databases[table])
        if not any_long(keys):
            return cast("Iterable[bytes | None]", map(get, keys, repeat(None), database))
        stored = map(get, (shortened(key) if is_long(key) else key for key in keys), repeat(None), database)
        return [
            split(cast(bytes, value))[1] if value is not None and is_long(key) else cast("bytes | None", value)
            for key, value in zip(keys, stored, strict=True)
        ]

    def ranges(self, table: str, low: Sequence[Bound], high: Sequence[Bound], limit: int | None) -> FoundRows:
        """Return the rows of each range, at most ``limit`` of each, with whole keys."""
        counts: list[int] = []
        keys: list[bytes] = []
        values: list[bytes] = []
        with self._transaction.cursor(self._databases[table]) as cursor:
            for start, stop in zip(low, high, strict=True):
                before = len(keys)
                _read_range(cursor, start or b"", stop, limit, keys, values)
                counts.append(len(keys) - before)
        return FoundRows(counts, keys, values)

    def throw_away(self) -> None:
        """Delete the damaged environment; the next open rebuilds it."""
        self._environment.throw_away()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._environment.open_reads -= 1
            self._transaction.abort()

    __del__ = close


def _read_range(
    cursor: Any, low: bytes, high: bytes | None, limit: int | None, keys: list[bytes], values: list[bytes]
) -> None:
    """Append a range's rows to ``keys`` and ``values``, in the order of their whole keys.

    Stored keys are compared: the first ``KEPT`` bytes order them as the whole keys would. Long keys with the same first
    ``KEPT`` bytes are stored in the order of their hashes; they are read together and then sorted.
    """
    if not cursor.set_range(low[:KEPT]):
        return
    first, unsorted, last = len(keys), False, b""
    most = None if limit is None else first + limit
    end = high if high is None or len(high) <= KEPT else end_of_prefix(high[:KEPT])
    for key, value in cursor:
        if end is not None and key >= end:
            break
        if most is not None and len(keys) >= most and key[:KEPT] != last[:KEPT]:
            break
        last = key
        if is_long(key):
            unsorted = True
            key, value = split(value)
        if key >= low and (high is None or key < high):
            keys.append(key)
            values.append(value)
    if unsorted:
        rows = sorted(zip(keys[first:], values[first:], strict=True))
        keys[first:], values[first:] = [key for key, _ in rows], [value for _, value in rows]
    if most is not None:
        del keys[most:], values[most:]


def _delete_before(transaction: lmdb.Transaction, database: Any, end: bytes) -> None:
    """Delete the keys below ``end``, which is shorter than the stored prefix of a long key."""
    with transaction.cursor(database) as cursor:
        there = cursor.first()
        while there and bytes(cursor.key()) < end:
            there = cursor.delete()


def _delete_gone(transaction: lmdb.Transaction, database: Any, pruning: Pruning) -> None:
    with transaction.cursor(database) as cursor:
        rows = iter(cursor)
        found: list[bytes] = []
        while chunk := list(islice(rows, _PRUNED_AT_ONCE)):
            keys = [bytes(key) for key, _ in chunk]
            values = [split(bytes(value))[1] if is_long(bytes(key)) else bytes(value) for key, value in chunk]
            found += [key for key, is_gone in zip(keys, pruning.gone(values), strict=True) if is_gone]
    for key in found:
        transaction.delete(key, db=database)


def _open(folder: Path) -> lmdb.Environment:
    reserve_lock(folder / "lock.mdb", _READERS)
    environment = lmdb.open(
        str(folder),
        map_size=FIRST_MAP_BYTES,
        max_dbs=64,
        max_readers=_READERS,
        sync=False,
        metasync=False,
        writemap=False,
        meminit=False,
    )
    environment.reader_check()  # remove readers of killed workers
    data = folder / "data.mdb"
    required = (int(environment.info()["last_pgno"]) + 1) * int(environment.stat()["psize"])
    if data.stat().st_size < required and environment.info()["last_txnid"]:
        environment.close()  # reading past the end would kill the process
        raise lmdb.CorruptedError(f"{data} is shorter than its own last page")
    return environment


def reserve_lock(lock: Path, readers: int) -> None:
    """Allocate the lock file. LMDB writes to it through a memory map: a full disk would kill the process."""
    pages = -(-(readers + 2) * _READER_BYTES // _PAGE_BYTES)
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        if os.fstat(descriptor).st_blocks * 512 < pages * _PAGE_BYTES and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, pages * _PAGE_BYTES)
    finally:
        os.close(descriptor)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(folder / "data.mdb")
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _decode_mark(stored: Any) -> EpochKey | None:
    if stored is None:
        return None
    epoch, branch = bytes(stored).decode().split(" ", 1)
    return EpochKey(branch, int(epoch))


def _write(transaction: lmdb.Transaction, database: Any, keys: Sequence[bytes], values: list[bytes | None]) -> None:
    items: Iterable[tuple[bytes, bytes | None]] = zip(keys, values, strict=True)
    if any_long(keys):
        items = [_stored(key, value) for key, value in items]
    if None not in values:
        with transaction.cursor(database) as cursor:
            cursor.putmulti(cast("Iterable[tuple[bytes, bytes]]", items))
        return
    for key, value in items:
        if value is None:
            transaction.delete(key, db=database)
        else:
            transaction.put(key, value, db=database)


def _stored(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    if not is_long(key):
        return key, value
    return shortened(key), None if value is None else joined(key, value)
