"""Sink backend of ``dbms.sink``. The package's docstring lists the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import sqlalchemy as sa

from epochal.backends.dbms.access import TableAccess
from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.applying import apply, compacted, refused_row, waited
from epochal.backends.dbms.failures import Busy, commit_outcome, refusal
from epochal.backends.dbms.fence import TABLE as FENCE_TABLE
from epochal.backends.dbms.fence import Fence, check_not_repeated
from epochal.backends.dbms.transaction import DbmsTransaction, DirectTransaction
from epochal.backends.dbms.writing import Writing
from epochal.backends.write_ahead_log import WriteAheadLog
from epochal.contracts.backend import SinkBackend, SinkPlace, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import RowRefused, SinkError
from epochal.faults import declare

PREPARED = declare("R1.dbms.fence-ready", "table and fence table exist, the fence still belongs to an earlier attempt")
TAKEN_OVER = declare("R1.dbms.taken-over", "the fence belongs to this attempt")
FENCE_MOVED = declare("E5.dbms.fence-moved", "the fence has moved within the transaction, no row is applied")
APPLIED = declare("E5.dbms.applied", "fence and rows are applied within the transaction, which is not committed")
COMMITTED = declare("E5.dbms.committed", "the transaction is committed, the log still exists")

CHUNK_ROWS = 64 * 1024
"""Number of rows sent to the database in one chunk; the next chunk is prepared meanwhile."""

_LOCK_SECONDS = 2
_TAKE_OVERS = 5


class DbmsBackend(SinkBackend):
    """Sink backend. ``place``: the sink's name and the snapshot store. Serialisable: connections stay in the
    process."""

    def __init__(self, place: SinkPlace, address: DatabaseAddress, writing: Writing) -> None:
        self._place = place
        self._address = address
        self._writing = writing
        self._log = WriteAheadLog(place)
        self._access = TableAccess(place.sink, address, writing)
        self._refused: tuple[tuple[EpochKey, str], str | None] | None = None

    @property
    def kind(self) -> str:
        return "dbms"

    @property
    def target(self) -> str:
        return f"dbms:{self._address.place}/{self._writing.table}"

    def check_types(self, schema: pa.Schema) -> None:
        self._access.check_types(schema)

    def check(self, schema: pa.Schema) -> None:
        self._access.check(schema)

    def recover(self, epoch: EpochScope) -> None:
        with self._access.transaction("prepare the tables") as connection:
            self._access.prepare(connection)
            self._fence.create(connection)
            others = self._fence.others(connection, epoch)
            check_not_repeated(connection, epoch, self._place.sink, self._writing, others, FENCE_TABLE)
        PREPARED.hit(epoch.epoch)
        self._take_over(epoch)
        TAKEN_OVER.hit(epoch.epoch)

    def shown(self, epoch: EpochScope) -> int | None:
        with self._access.transaction("read its fence", reading=True) as connection:
            return self._fence.shown(connection, epoch)

    def start(self, task: TaskScope) -> SinkTransaction:
        if self._place.delivery != "exactly_once":
            return DirectTransaction(self._access, self._fence, task, self._place.delivery)
        return DbmsTransaction(self._log, task, self._writing, self._access.target, self._address.dialect)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        try:
            self._commit(epoch, handles)
        except RowRefused as refused:
            cause = refused.__cause__
            if self._address.dialect != "postgresql" or cause is None:
                raise
            row = self._refused_row(epoch, handles, refused)
            if row is None:
                raise
            raise refusal(f"{self._access.subject}, epoch {epoch.epoch}: ", row, cause) from cause
        COMMITTED.hit(epoch.epoch)
        self._log.remove(epoch, handles)

    def _commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        with self._access.transaction(f"commit epoch {epoch.epoch}") as connection, waited(connection) as heard:
            if self._fence.advance(connection, epoch):
                FENCE_MOVED.hit(epoch.epoch)
                apply(connection, self._writing, heard(self._chunks(epoch, handles)))
                APPLIED.hit(epoch.epoch)
                with commit_outcome(self._access.subject, self._address):
                    connection.commit()

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._log.remove(epoch, handles)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return self._log.sweep(epoch, keep)

    def close(self) -> None:
        """Close this process's connections; they are opened again on demand."""
        self._access.close()

    @property
    def _fence(self) -> Fence:
        return Fence(self._place.sink, self._writing, self._address.place)

    def _refused_row(self, epoch: EpochScope, handles: Sequence[Handle], refused: RowRefused) -> str | None:
        """Find the refused row, once: each repetition of the commit raises the same refusal."""
        known = (epoch.key, refused.message)
        if self._refused is None or self._refused[0] != known:
            with self._access.transaction("find the refused row") as connection:
                row = refused_row(connection, self._writing, self._chunks(epoch, handles), self._address)
                connection.rollback()
            self._refused = known, row
        return self._refused[1]

    def _take_over(self, epoch: EpochScope) -> None:
        """R1.2. Terminates a transaction of an earlier attempt that holds the fence: a suspended one would hold it
        indefinitely."""
        for left in reversed(range(_TAKE_OVERS)):
            try:
                with self._access.transaction("take over its fence") as connection:
                    if self._address.dialect == "postgresql":
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                    self._fence.take_over(connection, epoch, self._place)
            except Busy as busy:
                if not left:
                    raise SinkError(
                        f"{busy.message} A driver of an earlier attempt may hold the fence in an open transaction; "
                        "terminate that process."
                    ) from busy
                self._end_holder(epoch)
            else:
                return

    def _end_holder(self, epoch: EpochScope) -> None:
        if self._address.dialect != "postgresql":
            return
        with self._access.transaction("end an earlier attempt's transaction", reading=True) as connection:
            process = self._fence.holder(connection, epoch)
            if process is not None:
                connection.execute(sa.select(sa.func.pg_terminate_backend(process)))

    def _chunks(self, epoch: EpochScope, handles: Sequence[Handle]) -> Iterator[pa.Table]:
        """Yield the epoch's rows in order. With keys, each chunk has one row per key; later chunks take precedence."""
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._log.read(epoch, handles):
            held.append(batch)
            rows += batch.num_rows
            # The order column applies to all rows of the epoch.
            if rows >= CHUNK_ROWS and self._writing.order_by is None:
                yield self._compacted(held)
                held, rows = [], 0
        if held:
            yield self._compacted(held)

    def _compacted(self, held: Sequence[pa.RecordBatch]) -> pa.Table:
        return compacted(pa.Table.from_batches(held), self._writing)
