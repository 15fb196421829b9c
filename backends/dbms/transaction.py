"""Transactions of one task attempt of a DBMS sink.

With exactly-once delivery a task writes a log into the snapshot store and does not connect to the database. With other
deliveries it writes rows into the table, in a database transaction; the epoch's commit then moves only the fence.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends.dbms import rows as row_rules
from epochal.backends.dbms import values
from epochal.backends.dbms.access import TableAccess
from epochal.backends.dbms.applying import apply, compacted, waited
from epochal.backends.dbms.failures import commit_outcome
from epochal.backends.dbms.fence import Fence
from epochal.backends.dbms.sharding import Sharding
from epochal.backends.dbms.target import Target
from epochal.backends.dbms.writing import INSERT, OPERATION, Writing
from epochal.backends.write_ahead_log import LogWriter, WriteAheadLog
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.configuration import DELIVERY, Delivery
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import SinkError
from epochal.faults import declare

LOGGED_CHUNK_ROWS = 256 * 1024
"""Rows held in memory until they are reduced to the last operation of each key and logged."""
LOG_BATCH_ROWS = 32 * 1024

CHECKED = declare("T2.dbms.checked", "a batch has been checked against the table, but not stored")
COMPACTED = declare("T3.dbms.compacted", "rows are reduced to the last operation of each key, not yet durable")


class DbmsTransaction(SinkTransaction):
    """Exactly-once delivery. ``target`` ``None``: the table was not inspected; only the database checks rows."""

    def __init__(
        self,
        log: WriteAheadLog,
        task: TaskScope,
        writing: Writing,
        target: Target | None,
        dialect: str,
        sharding: Sharding,
    ) -> None:
        self._log = log
        self._task = task
        self._writing = writing
        self._target = target
        self._dialect = dialect
        self._sharding = sharding
        self._writer: LogWriter | None = None
        self._held: list[pa.Table] = []
        self._held_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        rows = row_rules.renamed(batch, self._writing)
        if self._target is not None:
            values.check(rows, self._target, self._writing.table_keys, self._dialect)
        CHECKED.hit(self._task.epoch.epoch)
        self._held.append(rows)
        self._held_rows += rows.num_rows
        if self._held_rows >= LOGGED_CHUNK_ROWS:
            self._flush()

    def pre_commit(self) -> Handle:
        self._flush()
        COMPACTED.hit(self._task.epoch.epoch)
        if self._writer is None:
            return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=0, bytes=0, payload={})
        return self._writer.finish()

    def discard(self) -> None:
        self._held = []
        if self._writer is not None:
            self._writer.discard()

    def _flush(self) -> None:
        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        self._held, self._held_rows = [], 0
        if self._writing.keys:
            rows = row_rules.net(rows, self._writing.table_keys)
        if self._writer is None:
            self._writer = self._log.open(self._task, rows.schema, self._sharding.shards)
        for shard, mine in enumerate(self._sharding.split(rows)):
            for batch in mine.combine_chunks().to_batches(max_chunksize=LOG_BATCH_ROWS):
                self._writer.write(batch, shard)


APPLIED = declare("T3.dbms.direct-applied", "a task's rows are in its open transaction, which is not committed")
COMMITTED = declare("T3.dbms.direct-committed", "a task's rows are in the table, no handle names them yet")

CHUNK_ROWS = 64 * 1024


class DirectTransaction(SinkTransaction):
    """At-least-once or idempotent delivery. Rows are held until pre-commit, to keep the table's locks short.

    Without the fence a task of a replaced driver could write old values over newer ones.
    """

    def __init__(self, access: TableAccess, fence: Fence, task: TaskScope, delivery: Delivery) -> None:
        self._access = access
        self._fence = fence
        self._task = task
        self._delivery = delivery
        self._held: list[pa.Table] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        writing = self._access.writing
        rows = row_rules.renamed(batch, writing)
        if self._access.target is not None:
            values.check(rows, self._access.target, writing.table_keys, self._access.address.dialect)
        self._check_repeatable(rows)
        self._held.append(rows)

    def pre_commit(self) -> Handle:
        rows = sum(held.num_rows for held in self._held)
        size = sum(held.nbytes for held in self._held)
        if self._held:
            try:
                self._write()
            finally:
                self.discard()
        return Handle(
            owner=self._task.owner,
            subtask=self._task.subtask,
            rows=rows,
            bytes=size,
            payload={DELIVERY: self._delivery},
        )

    def discard(self) -> None:
        self._held = []
        self._access.close()

    def _write(self) -> None:
        access, epoch = self._access, self._task.epoch
        rows = compacted(pa.concat_tables(self._held), access.writing)
        chunks = (rows.slice(first, CHUNK_ROWS) for first in range(0, rows.num_rows, CHUNK_ROWS))
        with access.transaction(f"write epoch {epoch.epoch}") as connection, waited(connection) as heard:
            apply(connection, access.writing, heard(chunks))
            self._fence.check(connection, epoch)
            APPLIED.hit(epoch.epoch)
            with commit_outcome(access.subject, access.address):
                connection.commit()
        COMMITTED.hit(epoch.epoch)

    def _check_repeatable(self, rows: pa.Table) -> None:
        if OPERATION not in rows.column_names:
            return
        inserts = rows.filter(pc.equal(rows[OPERATION], INSERT))
        if inserts.num_rows:
            row = row_rules.described(inserts.slice(0, 1).to_pylist()[0])
            raise SinkError(
                f"Row {row} is inserted, but delivery {self._delivery} may write it twice, and the second "
                "insert would fail. Use upsert, or deliver exactly_once."
            )
