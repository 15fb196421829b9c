"""What there is to look up, for those who read replicas in other processes: an LMDB environment beside them.

An application's row says the epoch that every table has reached, and why it is not further; another one its branch, its
tables, and which generation of each is current. Both change in one transaction, after the replicas themselves: who
finds an epoch here finds it, or a later one, there. The number of the last transaction says whether anything is new.
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
    """An ``EpochalError``, for another process."""

    slug: str
    message: str

    @classmethod
    def of(cls, error: EpochalError) -> Failed:
        return cls(slug=error.slug, message=error.message)

    def error(self) -> EpochalError:
        return (error_class(self.slug) or EpochalError)(self.message)


class Position(_Model):
    """``at``: the committed epoch that every replica has reached."""

    at: EpochKey | None
    problem: Failed | None


class QueryableTable(_Model):
    """``generation``: the name of its folder, in that of the table."""

    table: StateTable
    generation: str


class Tables(_Model):
    """Of the branch that the application is on."""

    branch: str
    queryable: tuple[QueryableTable, ...]
    others: tuple[StateTable, ...]


class Left(NamedTuple):
    """What an earlier process has left."""

    tables: Tables
    position: Position | None


class ReplicaIndex:
    """One process writes, many read. Raises ``lmdb.Error``."""

    def __init__(self, directory: Path, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._file = directory / "data.mdb"
        self._identity = self._found()

    @classmethod
    def open(cls, directory: Path) -> ReplicaIndex:
        """To write; made where there is none."""
        directory.mkdir(exist_ok=True)
        reserve_lock(directory / "lock.mdb", _READERS)
        return cls(directory, lmdb.open(str(directory), map_size=_MAP_BYTES, sync=False, max_readers=_READERS))

    @classmethod
    def open_to_read(cls, directory: Path) -> ReplicaIndex:
        # A transaction is kept for the next look-up, with its place among the readers.
        environment = lmdb.open(str(directory), map_size=_MAP_BYTES, readonly=True, create=False, max_spare_txns=1)
        return cls(directory, environment)

    def close(self) -> None:
        self._environment.close()

    def publish(self, application: str, position: Position, tables: Tables) -> None:
        """Rows that stay the same are not written."""
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
        """Every application was followed once since :meth:`retract`, or could not be."""
        if not self.round_noted():
            with self._environment.begin(write=True) as transaction:
                transaction.put(_ROUND, b"")

    def round_noted(self) -> bool:
        with self._environment.begin() as transaction:
            return transaction.get(_ROUND) is not None

    def applications(self) -> list[str]:
        """Of which it holds anything."""
        with self._environment.begin() as transaction:
            return [*_names(transaction, _TABLES), *_names(transaction, _RETRACTED)]

    def left(self, application: str) -> Left | None:
        """What an earlier process has left of an application; without a position when it was retracted."""
        name = application.encode()
        with self._environment.begin() as transaction:
            position, tables = transaction.get(_POSITION + name), transaction.get(_TABLES + name)
            retracted = transaction.get(_RETRACTED + name)
        if position is not None and tables is not None:
            return Left(Tables.model_validate_json(tables), Position.model_validate_json(position))
        return None if retracted is None else Left(Tables.model_validate_json(retracted), None)

    def retract(self) -> None:
        """Nothing is published any more: after a pause nobody knows how old it is."""
        with self._environment.begin(write=True) as transaction:
            transaction.delete(_ROUND)
            for application in _names(transaction, _TABLES):
                name = application.encode()
                transaction.put(_RETRACTED + name, transaction.pop(_TABLES + name) or b"")
                transaction.delete(_POSITION + name)

    def is_current(self) -> bool:
        """Whether the file is still the one that was opened, which cannot have been given another's number since."""
        return self._found() == self._identity

    @contextmanager
    def reading(self) -> Iterator[IndexSnapshot]:
        """All that is read in the block is from one moment."""
        with self._environment.begin() as transaction:
            yield IndexSnapshot(transaction)

    def number(self) -> int:
        """Of the last transaction: it rises whenever anything changes."""
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
        """Position and tables as they are kept: JSON."""
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
