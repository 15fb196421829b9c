"""Transaction of one task attempt: rows of the table, in a database transaction that ends prepared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from epochal.backends.dbms import postgresql, values
from epochal.backends.dbms import rows as row_rules
from epochal.backends.dbms.access import TableAccess
from epochal.backends.dbms.failures import translated
from epochal.backends.dbms.patience import Patience, patience
from epochal.backends.dbms.writing import ORDER
from epochal.backends.postgresql_two_phase.ledger import Ledger, TransactionName
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.faults import declare

LOCK_SECONDS = 20
"""Timeout for a row lock that another open transaction holds; the epoch is then aborted."""

STATEMENT_ROWS = 5_000

BEGUN = declare("T1.postgresql.begun", "a task's transaction is open at the server and has no row")
IN_LEDGER = declare("T3.postgresql.in-ledger", "rows and ledger row are in the open transaction, which is not prepared")
PREPARED = declare("T3.postgresql.prepared", "the transaction is prepared, no handle names it yet")


class TwoPhaseTransaction(SinkTransaction):
    """The first row opens a connection; a task without rows opens none."""

    def __init__(self, access: TableAccess, ledger: Ledger, task: TaskScope) -> None:
        self._access = access
        self._ledger = ledger
        self._task = task
        self._connection: psycopg.Connection[Any] | None = None
        self._held: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        writing = self._access.writing
        rows = row_rules.renamed(batch, writing)
        if self._access.target is not None:
            values.check(rows, self._access.target, writing.table_keys, "postgresql")
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        with self._translated("write"):
            connection = self._open()
            if writing.keys:
                self._held.append(rows)  # only the last operation of each key may touch its row
            else:
                with patience(connection):
                    postgresql.insert(connection, writing, [rows])

    def pre_commit(self) -> Handle:
        if self._connection is None:
            return self._handle({})
        name = TransactionName.new(self._task)
        with self._translated("pre-commit"), patience(self._connection) as watching:
            self._merge(self._connection, watching)
            self._ledger.note(self._connection, name)
            IN_LEDGER.hit(self._task.epoch.epoch)
            self._connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(name.gid)))
        PREPARED.hit(self._task.epoch.epoch)
        self._close()
        return self._handle({"gid": name.gid})

    def discard(self) -> None:
        self._held = []
        self._close()

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            # Without psycopg's transaction management, which does not support prepared transactions.
            self._connection = psycopg.connect(**self._access.address.libpq(), autocommit=True)
            self._connection.execute("BEGIN")
            self._connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            BEGUN.hit(self._task.epoch.epoch)
        return self._connection

    def _merge(self, connection: psycopg.Connection[Any], watching: Patience) -> None:
        """Use statements: a transaction that has used a temporary table cannot be prepared."""
        if not self._held:
            return
        writing = self._access.writing
        rows = row_rules.net(pa.concat_tables(self._held), writing.table_keys)
        self._held = []
        with connection.cursor() as cursor:
            for statement, parameters in postgresql.statements(writing, _without_order(rows)):
                for first in range(0, len(parameters), STATEMENT_ROWS):
                    cursor.executemany(statement, parameters[first : first + STATEMENT_ROWS])
                    watching.renew()

    def _handle(self, payload: dict[str, Any]) -> Handle:
        task = self._task
        return Handle(owner=task.owner, subtask=task.subtask, rows=self._rows, bytes=self._bytes, payload=payload)

    def _close(self) -> None:
        """The server rolls back a transaction that was not prepared."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = None

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        with translated(f"{self._access.subject}, subtask {self._task.subtask},", doing, self._access.address):
            yield


def _without_order(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([ORDER]) if ORDER in rows.column_names else rows
