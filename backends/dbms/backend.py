"""Sink backend of ``dbms.sink``. The package's docstring lists the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from epochal.backends.dbms.access import TableAccess
from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.failures import Busy
from epochal.backends.dbms.fence import TABLE as FENCE_TABLE
from epochal.backends.dbms.fence import Fence, check_not_repeated
from epochal.backends.dbms.shard import ShardWriter, parts_of
from epochal.backends.dbms.shard_processes import ShardProcesses, in_this_process
from epochal.backends.dbms.transaction import DbmsTransaction, DirectTransaction
from epochal.backends.dbms.writing import Writing
from epochal.backends.write_ahead_log import WriteAheadLog
from epochal.contracts.backend import SinkBackend, SinkPlace, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import SinkError
from epochal.faults import declare

PREPARED = declare("R1.dbms.fence-ready", "table and fence table exist, the fence still belongs to an earlier attempt")
TAKEN_OVER = declare("R1.dbms.taken-over", "the fence belongs to this attempt")
COMMITTED = declare("E5.dbms.committed", "the transactions of all shards are committed, the log still exists")

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
        self._writer = ShardWriter(place, self._access)
        self._processes: ShardProcesses | None = None
        self._fences: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_processes": None}

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
        access = self._access
        return DbmsTransaction(self._log, task, self._writing, access.target, self._address.dialect, access.sharding)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        if self._fences is None:
            with self._access.transaction("read its fence", reading=True) as connection:
                self._fences = self._fence.shards(connection, epoch)
        parts = parts_of(epoch, handles, self._fences)
        if self._writing.shards > 1 and len(parts) > 1:
            self._processes = self._processes or ShardProcesses(self._place.sink, self._writer)
            self._processes.commit(parts)
        else:
            in_this_process(self._writer, parts)
        COMMITTED.hit(epoch.epoch)
        self._log.remove(epoch, handles)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self._log.remove(epoch, handles)

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return self._log.sweep(epoch, keep)

    def close(self) -> None:
        """Close this process's connections and end those of the shards; they are opened again on demand."""
        self._access.close()
        if self._processes is not None:
            self._processes.close()

    @property
    def _fence(self) -> Fence:
        return Fence(self._place.sink, self._writing, self._address.place)

    def _take_over(self, epoch: EpochScope) -> None:
        """R1.2. Terminates transactions of an earlier attempt that hold the fence: a suspended one would hold it
        indefinitely."""
        for left in reversed(range(_TAKE_OVERS)):
            try:
                with self._access.transaction("take over its fence") as connection:
                    if self._address.dialect == "postgresql":
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                    self._fences = self._fence.take_over(connection, epoch, self._place, self._writing.shards)
            except Busy as busy:
                if not left:
                    raise SinkError(
                        f"{busy.message} A driver of an earlier attempt may hold the fence in an open transaction; "
                        "terminate that process."
                    ) from busy
                self._end_holders(epoch)
            else:
                return

    def _end_holders(self, epoch: EpochScope) -> None:
        if self._address.dialect != "postgresql":
            return
        with self._access.transaction("end an earlier attempt's transactions", reading=True) as connection:
            for process in self._fence.holders(connection, epoch):
                connection.execute(sa.select(sa.func.pg_terminate_backend(process)))
