"""One replica: the committed rows of one state table by encoded key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from pathlib import Path

import lmdb

from epochal.backends.lmdb_environment import reserve_lock
from epochal.backends.lmdb_long_keys import KEPT, LONGEST, any_long, is_long, shortened, split
from epochal.contracts.identity import EpochKey
from epochal.state.key_codec import FORM
from epochal.state.table import StateTable

LEAST_MAP_BYTES = 1 << 30
"""Minimum map size. It reserves address space, not memory or disk: the file grows as rows are added."""
_READERS = 1024
_MARK, _TABLE, _FORMAT = b"mark", b"table", b"format"
_CURRENT_FORMAT = b"2, keys of form %d" % FORM

UNREADABLE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
"""LMDB errors for a file that is not a valid replica."""


@dataclass(frozen=True, slots=True)
class Found:
    """Values as of one committed epoch, in the order of the keys; ``None`` for a missing row."""

    at: EpochKey
    values: list[bytes | None]


class Replica:
    """One generation of a replica: an LMDB environment in its own folder.

    Reads are safe from any thread and any process, and never wait for a writer. The environment is closed by ``close``,
    or when the last reference to it is dropped.

    The map size is fixed when the generation is created: to resize it, LMDB would have to move the map while it is
    read.
    """

    def __init__(self, directory: Path, environment: lmdb.Environment) -> None:
        self.directory = directory
        self.environment = environment
        create = not environment.flags()["readonly"]
        self.about = environment.open_db(b"about", create=create)
        self.rows = environment.open_db(b"rows", create=create)
        self.long_rows = environment.open_db(b"long", create=create)
        self.times = environment.open_db(b"times", create=create)
        self._mark: tuple[bytes, EpochKey] = (b"", EpochKey("", 0))

    @classmethod
    def open(cls, directory: Path, map_bytes: int = LEAST_MAP_BYTES) -> Replica:
        """Open a replica for reading and writing; create an empty one with this map size if none exists.

        Raises one of ``UNREADABLE``, and ``lmdb.Error`` or ``OSError`` for disk errors.
        """
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / "data.mdb").exists():
            map_bytes = 0  # the size stored in the file
        reserve_lock(directory / "lock.mdb", _READERS)
        # No sync: a replica is a copy, and is not reused after a reboot of the machine.
        environment = lmdb.open(str(directory), map_size=map_bytes, max_dbs=4, sync=False, max_readers=_READERS)
        return cls._checked(directory, environment)

    @classmethod
    def open_to_read(cls, directory: Path) -> Replica:
        """Open a replica that another process writes. Raises as :meth:`open`; ``lmdb.Error`` if none exists."""
        environment = lmdb.open(str(directory), map_size=0, max_dbs=4, readonly=True, create=False, max_spare_txns=1)
        return cls._checked(directory, environment)

    @classmethod
    def _checked(cls, directory: Path, environment: lmdb.Environment) -> Replica:
        try:
            _check_length(directory, environment)
            replica = cls(directory, environment)
            replica._check_format()
            return replica
        except lmdb.Error:
            environment.close()
            raise

    def _check_format(self) -> None:
        with self.environment.begin() as transaction:
            found = transaction.get(_FORMAT, db=self.about)
        if found is None and not self.environment.flags()["readonly"]:
            with self.environment.begin(write=True) as transaction:
                transaction.put(_FORMAT, _CURRENT_FORMAT, db=self.about)
        elif found != _CURRENT_FORMAT:
            raise lmdb.VersionMismatchError(f"replica format {found!r}")

    def set_map(self, map_bytes: int) -> None:
        """Set the map size. Call it before the first reader opens the file.

        The write stores the size in the file, so readers use the same size.
        """
        self.environment.set_mapsize(map_bytes)
        with self.environment.begin(write=True) as transaction:
            transaction.put(_FORMAT, _CURRENT_FORMAT, db=self.about)

    @property
    def map_bytes(self) -> int:
        return int(self.environment.info()["map_size"])

    def close(self) -> None:
        self.environment.close()

    def mark(self) -> EpochKey | None:
        """Return the committed epoch of the replica; ``None`` while the replica is new."""
        with self.environment.begin() as transaction:
            return self.mark_in(transaction)

    def table(self) -> StateTable | None:
        """Return the declaration of the stored rows."""
        with self.environment.begin() as transaction:
            text = transaction.get(_TABLE, db=self.about)
            return None if text is None else StateTable.model_validate_json(text)

    def count(self) -> tuple[int, EpochKey | None]:
        """Return the number of rows and their epoch."""
        with self.environment.begin() as transaction:
            rows = transaction.stat(self.rows)["entries"] + transaction.stat(self.long_rows)["entries"]
            return rows, self.mark_in(transaction)

    def get(self, key: bytes) -> tuple[EpochKey | None, bytes | None]:
        """Return the epoch and the value of one key."""
        with self.environment.begin() as transaction:
            known, at = self._mark
            if transaction.get(_MARK, db=self.about) != known or not known:
                return self.mark_in(transaction), self._value(transaction, key)
            return at, transaction.get(key, db=self.rows) if len(key) < LONGEST else self._value(transaction, key)

    def get_many(self, keys: Sequence[bytes]) -> Found | None:
        """Return the values of several keys, all from one epoch; ``None`` while the replica is new."""
        with self.environment.begin() as transaction:
            at = self.mark_in(transaction)
            if at is None:
                return None
            if any_long(keys):
                return Found(at, [self._value(transaction, key) for key in keys])
            get, rows = transaction.get, self.rows
            return Found(at, [get(key, None, rows) for key in keys])

    def scan(self, prefix: bytes) -> tuple[EpochKey | None, list[tuple[bytes, bytes]]]:
        """Return the epoch and all rows whose key starts with ``prefix``, in key order."""
        with self.environment.begin() as transaction:
            found = list(self._scan_short(transaction, prefix))
            if transaction.stat(self.long_rows)["entries"]:
                found = sorted([*found, *self._scan_long(transaction, prefix)])
            return self.mark_in(transaction), found

    def page(self, prefix: bytes, after: bytes | None, limit: int) -> tuple[EpochKey | None, list[tuple[bytes, bytes]]]:
        """Return at most ``limit`` rows in key order whose key starts with ``prefix`` and is greater than ``after``."""
        with self.environment.begin() as transaction:
            start = prefix if after is None else max(prefix, after + b"\0")
            found = list(islice(self._scan_short(transaction, prefix, start), limit))
            if transaction.stat(self.long_rows)["entries"]:
                long_rows = (row for row in self._scan_long(transaction, prefix) if row[0] >= start)
                found = sorted([*found, *nsmallest(limit, long_rows)])[:limit]
            return self.mark_in(transaction), found

    def mark_in(self, transaction: lmdb.Transaction) -> EpochKey | None:
        """Return the mark as seen by one transaction."""
        found = transaction.get(_MARK, db=self.about)
        if found is None:
            return None
        text = bytes(found)
        known, at = self._mark
        if text != known:
            at = _decode_mark(text)
            self._mark = (text, at)
        return at

    def set_mark(self, transaction: lmdb.Transaction, at: EpochKey, table: StateTable) -> None:
        transaction.put(_MARK, _encode_mark(at), db=self.about)
        transaction.put(_TABLE, table.model_dump_json().encode(), db=self.about)

    def _value(self, transaction: lmdb.Transaction, key: bytes) -> bytes | None:
        if not is_long(key):
            value = transaction.get(key, db=self.rows)
            return None if value is None else bytes(value)
        kept = transaction.get(shortened(key), db=self.long_rows)
        return None if kept is None else split(bytes(kept))[1]

    def _scan_short(
        self, transaction: lmdb.Transaction, prefix: bytes, start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        start = prefix if start is None else start
        with transaction.cursor(self.rows) as cursor:
            if cursor.set_range(start[:LONGEST]):
                for key, value in cursor:
                    if not bytes(key).startswith(prefix):
                        return
                    if bytes(key) >= start:
                        yield bytes(key), bytes(value)

    def _scan_long(self, transaction: lmdb.Transaction, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        beginning = prefix[:KEPT]
        with transaction.cursor(self.long_rows) as cursor:
            if cursor.set_range(beginning):
                for short, kept in cursor:
                    if not bytes(short).startswith(beginning):
                        return
                    key, value = split(bytes(kept))
                    if key.startswith(prefix):
                        yield key, value


def _check_length(directory: Path, environment: lmdb.Environment) -> None:
    """Reject a truncated file: reading a page beyond the end of the file would kill this process (SIGBUS)."""
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    length = (directory / "data.mdb").stat().st_size
    if length < needed:
        raise lmdb.CorruptedError(f"data.mdb has {length} of {needed} bytes")


def _encode_mark(at: EpochKey) -> bytes:
    return f"{at.branch}/{at.epoch}".encode()


def _decode_mark(text: bytes) -> EpochKey:
    branch, _, epoch = text.decode().rpartition("/")
    return EpochKey(branch, int(epoch))
