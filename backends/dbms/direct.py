"""What one task attempt writes where the sink does not deliver exactly once: rows of the table, in a transaction.

There is no log, and nothing is left for E5 but to move the fence. The fence stays, as it costs a row an epoch beside
the critical path, and without it a task of a driver that was replaced could put old values over newer ones.
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
from epochal.backends.dbms.writing import INSERT, OPERATION
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.configuration import DELIVERY, Delivery
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import SinkError
from epochal.faults import declare

APPLIED = declare("T3.dbms.direct-applied", "a task's rows are in its open transaction, which is not committed")
COMMITTED = declare("T3.dbms.direct-committed", "a task's rows are in the table, no handle names them yet")

CHUNK_ROWS = 64 * 1024


class DirectTransaction(SinkTransaction):
    """At least once, or idempotent. Rows are held until pre-commit: the table is locked for as short as can be."""

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
            with commit_outcome(access.who, access.address):
                connection.commit()
        COMMITTED.hit(epoch.epoch)

    def _check_repeatable(self, rows: pa.Table) -> None:
        if OPERATION not in rows.column_names:
            return
        inserts = rows.filter(pc.equal(rows[OPERATION], INSERT))
        if inserts.num_rows:
            row = row_rules.described(inserts.slice(0, 1).to_pylist()[0])
            raise SinkError(
                f"Row {row} is to be inserted, but delivery {self._delivery} may write it again, and then it is there. "
                "Say upsert, or deliver exactly_once."
            )
