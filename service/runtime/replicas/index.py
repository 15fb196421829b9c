"""Index of the replicas for readers in other processes: an LMDB environment next to the replicas.

Each application has two rows. One stores the epoch that every table has reached, and the problem that prevents
progress.
The other stores the branch, the tables and the current generation of each table. Both change in one transaction, after
the replicas themselves, so the replicas are always at the epoch in the index or at a later one. The number of the last
transaction shows whether anything has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
from pydantic import BaseModel, ConfigDict

from epochal.backends.lmdb_environment import reserve_lock
from epochal.contracts.identity import EpochKey
from epochal.errors import EpochalError, error_class
from epochal.state.table import StateTable

_MAP_BYTES = 4 << 30
_READERS = 1024
_POSITION, _TABLES, _RETRACTED = b"position/", b"tables/", b"retracted/"
_ROUND = b"round"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class Failed(_Model):
    """An ``EpochalError`` in serialised form, for another process."""

    slug: str
    message: str

    @classmethod
    def of(cls, error: EpochalError) -> Failed:
        return cls(slug=error.slug, message=error.message)

    def error(self) -> EpochalError:
        return (error_class(self.slug) or EpochalError)(self.message)


class Position(_Model):
    """Position of an application. ``at``: the committed epoch that every replica has reached."""

    at: EpochKey | None
    problem: Failed | None


class QueryableTable(_Model):
    """A queryable table. ``generation``: the name of the generation's folder within the folder of the table."""

    table: StateTable
    generation: str


class Tables(_Model):
    """State tables of the application's current branch."""

    branch: str
    queryable: tuple[QueryableTable, ...]
    others: tuple[StateTable, ...]
    unreplicated: tuple[StateTable, ...] = ()


class Left(NamedTuple):
    """Index entry left by an earlier process."""

    tables: Tables
    position: Position | None


class ReplicaIndex:
    """Index with one writing process and many readers. Raises ``lmdb.Error``."""

    def __init__(self, directory: Path, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._file = directory / "data.mdb"
        self._identity = self._found()

    @classmethod
    def open(cls, directory: Path) -> ReplicaIndex:
        """Open the index for writing, and create it if it does not exist."""
        directory.mkdir(exist_ok=True)
        reserve_lock(directory / "lock.mdb", _READERS)
        return cls(directory, lmdb.open(str(directory), map_size=_MAP_BYTES, sync=False, max_readers=_READERS))

    @classmethod
    def open_to_read(cls, directory: Path) -> ReplicaIndex:
        # Keep one read transaction, with its reader slot, for the next look-up.
        environment = lmdb.open(str(directory), map_size=_MAP_BYTES, readonly=True, create=False, max_spare_txns=1)
        return cls(directory, environment)

    def close(self) -> None:
        self._environment.close()

    def publish(self, application: str, position: Position, tables: Tables) -> None:
        """Write the rows of an application, except unchanged ones."""
        name = application.encode()
        self._environment.reader_check()
        with self._environment.begin(write=True) as transaction:
            for row, content in ((_POSITION + name, position), (_TABLES + name, tables)):
                encoded = content.model_dump_json().encode()
                if transaction.get(row) != encoded:
                    transaction.put(row, encoded)
            transaction.delete(_RETRACTED + name)

    def forget(self, applications: Iterable[str]) -> None:
        with self._environment.begin(write=True) as transaction:
            for name in map(str.encode, applications):
                transaction.delete(_POSITION + name)
                transaction.delete(_TABLES + name)

    def note_round(self) -> None:
        """Record that every application has been followed once since :meth:`retract`, or has failed to be."""
        if not self.round_noted():
            with self._environment.begin(write=True) as transaction:
                transaction.put(_ROUND, b"")

    def round_noted(self) -> bool:
        with self._environment.begin() as transaction:
            return transaction.get(_ROUND) is not None

    def applications(self) -> list[str]:
        """List the applications with rows in the index."""
        with self._environment.begin() as transaction:
            return [*_names(transaction, _TABLES), *_names(transaction, _RETRACTED)]

    def left(self, application: str) -> Left | None:
        """Return the entry that an earlier process left for an application, without a position if it was retracted."""
        name = application.encode()
        with self._environment.begin() as transaction:
            position, tables = transaction.get(_POSITION + name), transaction.get(_TABLES + name)
            retracted = transaction.get(_RETRACTED + name)
        if position is not None and tables is not None:
            return Left(Tables.model_validate_json(tables), Position.model_validate_json(position))
        return None if retracted is None else Left(Tables.model_validate_json(retracted), None)

    def retract(self) -> None:
        """Withdraw all published entries: after a pause their age is unknown."""
        with self._environment.begin(write=True) as transaction:
            transaction.delete(_ROUND)
            for application in _names(transaction, _TABLES):
                name = application.encode()
                transaction.put(_RETRACTED + name, transaction.pop(_TABLES + name) or b"")
                transaction.delete(_POSITION + name)

    def is_current(self) -> bool:
        """Return ``True`` if the file is still the opened one. Its inode number cannot be reused while it is open."""
        return self._found() == self._identity

    @contextmanager
    def reading(self) -> Iterator[IndexSnapshot]:
        """Provide a consistent snapshot of the index for the block."""
        with self._environment.begin() as transaction:
            yield IndexSnapshot(transaction)

    def number(self) -> int:
        """Return the number of the last transaction, which increases with every change."""
        with self._environment.begin() as transaction:
            return int(transaction.id())

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_dev, found.st_ino


class IndexSnapshot:
    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self.number = int(transaction.id())

    def rows(self, application: str) -> tuple[bytes | None, bytes | None]:
        """Return the stored position and tables, as JSON."""
        name = application.encode()
        return self._transaction.get(_POSITION + name), self._transaction.get(_TABLES + name)


def _names(transaction: Any, prefix: bytes) -> list[str]:
    found = []
    with transaction.cursor() as cursor:
        if cursor.set_range(prefix):
            for key in cursor.iternext(values=False):
                if not key.startswith(prefix):
                    break
                found.append(key[len(prefix) :].decode())
    return found
