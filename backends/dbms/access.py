"""Access to a sink's table from one process: connections, transactions, and the check of the stream's columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine

from epochal.backends.dbms import target as targets
from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.failures import translated
from epochal.backends.dbms.sharding import Sharding, sharding_of
from epochal.backends.dbms.target import Target
from epochal.backends.dbms.writing import Writing
from epochal.errors import SchemaError


class TableAccess:
    """Access to one table. Serialisable: connections stay in the process. :meth:`prepare` sets ``target`` and
    ``sharding``."""

    def __init__(self, sink: str, address: DatabaseAddress, writing: Writing) -> None:
        self.subject = f"Sink {sink!r}"
        self.address = address
        self.writing = writing
        self.target: Target | None = None
        self.sharding = Sharding(1 if writing.keys else writing.shards)
        self._schema: pa.Schema | None = None
        self._engine: Engine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    def check_types(self, schema: pa.Schema) -> None:
        """Check that the schema has the columns that the sink names. Raises ``SchemaError``."""
        with self._explained():
            self.writing.written(schema)

    def check(self, schema: pa.Schema) -> None:
        """Check that the table exists, or will be created, and accepts rows of this schema. Writes nothing.

        Raises ``SchemaError`` for a mismatch, ``SinkError`` when the database cannot be queried.
        """
        with self._explained():
            self.writing.written(schema)
            with self.transaction("look at the table", reading=True) as connection:
                found = targets.find(connection, self.writing)
                if found is None and not self.writing.create:
                    raise targets.missing(self.writing)
                if found is not None:
                    targets.check(found, self.writing, schema, self.address.dialect)
                else:
                    found = targets.described(targets.planned(connection, self.writing, schema), self.address.dialect)
                sharding_of(connection, found, self.writing, schema)
        self._schema = schema

    def prepare(self, connection: Connection) -> None:
        """Create the table if requested, check again that it fits the schema, and store its description."""
        with self._explained():
            found = targets.find(connection, self.writing)
            if found is None and self.writing.create and self._schema is not None:
                targets.create(connection, self.writing, self._schema)
                found = targets.find(connection, self.writing)
            if found is None:
                raise targets.missing(self.writing)
            if self._schema is not None:
                targets.check(found, self.writing, self._schema, self.address.dialect)
            self.sharding = sharding_of(connection, found, self.writing, self._schema)
        self.target = found

    @contextmanager
    def transaction(self, doing: str, reading: bool = False) -> Iterator[Connection]:
        """Run a transaction, committed at the end unless the block has committed it; translate the database's
        errors."""
        with translated(self.subject, doing, self.address):
            if self._engine is None:
                self._engine = self.address.engine(self._isolation)
            with self._engine.connect().execution_options(epochal_reading=reading) as connection:
                yield connection
                if connection.in_transaction():
                    connection.commit()

    @property
    def _isolation(self) -> str | None:
        """Concurrent upserts of InnoDB lock the gaps between rows, and wait for each other, unless they read committed
        rows only."""
        return "READ COMMITTED" if self.address.dialect == "mysql" and self.writing.shards > 1 else None

    def close(self) -> None:
        """Close this process's connections; they are opened again on demand."""
        if self._engine is not None:
            self._engine.dispose()
        self._engine = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add this sink and its database to schema errors."""
        try:
            yield
        except SchemaError as error:
            raise SchemaError(f"{self.subject} at {self.address.place}: {error.message}") from None
