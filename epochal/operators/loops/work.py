"""The records of a loop in the store: the tasks of the tail write them, the tasks of the head read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import FileCorrupt, SchemaError
from epochal.faults import declare
from epochal.snapshots import layout
from epochal.snapshots.in_flight import files_of, payload_of
from epochal.snapshots.manifest import FileInFlight, FileReference
from epochal.snapshots.packs import is_apart
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.task_files import TaskFiles
from epochal.state.types import with_spark_types

FILE_BYTES = 64 << 20
"""The approximate size of the records that a task buffers before it writes a file."""
RECORDS_DURABLE = declare("T3.loop.records-durable", "records of a loop are complete; no handle names them yet")


@dataclass(frozen=True)
class LoopTail(SinkBackend):
    """Stores the records of the next pass. The manifest names their files, so that there is nothing to commit.

    ``record``: the columns of a record.
    """

    name: str
    store: SnapshotStore
    record: pa.Schema

    @property
    def kind(self) -> str:
        return "loop"

    @property
    def target(self) -> str:
        return "loop:"

    def check(self, schema: pa.Schema) -> None:
        """The analysis has checked the columns."""

    def start(self, task: TaskScope) -> SinkTransaction:
        return _Records(self, task)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Without effect: the manifest names the files."""

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        for handle in handles:
            for part in files_of(handle):
                if is_apart(part.file, handle):
                    self.store.delete(part.file.path)

    def recover(self, epoch: EpochScope) -> None:
        """Without effect: no other system has files of this loop."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return self.sweep_beside(epoch, [part for handle in keep for part in files_of(handle)])

    def sweep_beside(self, epoch: EpochScope, keep: Iterable[FileInFlight]) -> int:
        """Like :meth:`sweep`, with the files to keep."""
        kept = {part.file.path for part in keep}
        mine = (path for path in self.store.list(layout.loops(epoch.key)) if layout.table_of_delta(path) == self.name)
        return sum(self.store.delete(path) for path in mine if path not in kept)


@dataclass
class _Records(SinkTransaction):
    """The records that one task attempt adds to a loop."""

    tail: LoopTail
    task: TaskScope
    _files: list[FileReference] = field(default_factory=list)
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._task_files = TaskFiles(self.tail.store)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= FILE_BYTES:
            self._end_file()

    def pre_commit(self) -> Handle:
        self._end_file()
        return Handle(
            owner=self.task.owner,
            subtask=self.task.subtask,
            rows=sum(file.rows for file in self._files),
            bytes=sum(file.bytes for file in self._files),
            payload=payload_of(self._files),
            carried=self._task_files.carried,
        )

    def discard(self) -> None:
        self._batches = []
        self._task_files.discard()

    def _end_file(self) -> None:
        if not self._batches:
            return
        rows = pa.Table.from_batches(self._batches).cast(self.tail.record)
        buffer = pa.BufferOutputStream()
        pq.write_table(rows, buffer, compression="zstd", compression_level=1)
        path = layout.records_of_loop(self.task.epoch.key, self.tail.name, self.task.subtask)
        self._files.append(self._task_files.write_file(path, buffer.getvalue(), rows.num_rows))
        self._batches, self._bytes = [], 0
        RECORDS_DURABLE.hit(self.task.epoch.epoch)


def read_records(
    store: SnapshotStore, loop: str, parts: Iterable[FileInFlight], record: pa.Schema
) -> Iterator[pa.Table]:
    """The records, with the columns of ``record``; a missing column is null.

    Raises ``FileMissing`` or ``FileCorrupt`` with the file.
    """
    of = f"the records in flight in loop {loop!r}"
    for part in parts:
        rows = pq.read_table(pa.BufferReader(store.read_file(part.file, of)))
        if rows.num_rows != part.file.rows:
            raise FileCorrupt(f"{store.place_of(part.file)}, of {of}, holds {rows.num_rows} rows.")
        yield _with_columns(loop, rows.slice(part.first, part.rows), record)


def _with_columns(loop: str, rows: pa.Table, record: pa.Schema) -> pa.Table:
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in record
    ]
    try:
        return pa.Table.from_arrays(columns, names=record.names).cast(record)
    except pa.ArrowException as error:
        raise SchemaError(
            f"Loop {loop!r}: the types of its records in flight differ from its columns: {with_spark_types(error)}."
        ) from None


@dataclass(frozen=True)
class ReadRecords:
    """A task that reads, for each number in the batches, the files of the share with this number."""

    store: SnapshotStore
    loop: str
    shares: tuple[tuple[FileInFlight, ...], ...]
    record: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in read_records(self.store, self.loop, self.shares[number], self.record):
                    yield from rows.to_batches()
