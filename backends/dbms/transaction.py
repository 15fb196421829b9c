"""What one task attempt of a DBMS sink writes: a log, in the snapshot store. No task connects to the database."""

from __future__ import annotations

import pyarrow as pa

from epochal.backends.dbms import rows as row_rules
from epochal.backends.dbms import values
from epochal.backends.dbms.target import Target
from epochal.backends.dbms.writing import Writing
from epochal.backends.write_ahead_log import LogWriter, WriteAheadLog
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.faults import declare

CHUNK_ROWS = 256 * 1024
"""Rows of which only the last of each key stays, at once."""
LOG_BATCH_ROWS = 32 * 1024

CHECKED = declare("T2.dbms.checked", "a batch has been checked against the table, nothing of it is stored")
COMPACTED = declare("T3.dbms.compacted", "only the last operation of each key is left, not yet durable")


class DbmsTransaction(SinkTransaction):
    """``target`` ``None``: the table was not looked at before, and rows are checked by the database alone."""

    def __init__(
        self, log: WriteAheadLog, task: TaskScope, writing: Writing, target: Target | None, dialect: str
    ) -> None:
        self._log = log
        self._task = task
        self._writing = writing
        self._target = target
        self._dialect = dialect
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
        if self._held_rows >= CHUNK_ROWS:
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
            self._writer = self._log.open(self._task, rows.schema)
        for batch in rows.combine_chunks().to_batches(max_chunksize=LOG_BATCH_ROWS):
            self._writer.write(batch)
