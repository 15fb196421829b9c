"""The write-ahead log (WAL) of a sink: rows of a task, durable in the snapshot store, applied at the commit. For
targets that cannot store rows durably and invisibly: pre-commit writes the log, and commit applies it in one
transaction of the target, together with a marker that records the epoch. Shared by the Kafka and the DBMS sinks.

A log is one task attempt's batches in order, in *segments* (Arrow IPC streams of at most about ``SEGMENT_BYTES``) so
that neither writer nor reader holds more than one. It is deleted once its commit has succeeded: the target's marker
shows whether an epoch has been applied, so a repetition needs no log.

The log of a sink with several *shards* has segments for each. The handle names the number of shards and the shard of
each segment: a later commit applies the epoch as it was logged, whatever number the sink has by then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from epochal.contracts.backend import SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import FileCorrupt, SinkError
from epochal.faults import declare
from epochal.snapshots import layout
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.packs import is_apart
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.task_files import TaskFiles

SEGMENT_BYTES = 64 * 1024 * 1024
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")

SEGMENT_DURABLE = declare("T3.log.segment-durable", "a segment of a task's log is complete; no handle names it yet")
LOG_REMOVED = declare(
    "E5.log.removed", "the epoch is applied; a segment of its log has been deleted, unless it is in a pack"
)


@dataclass
class _OpenSegment:
    """A segment that is being written."""

    buffer: pa.BufferOutputStream
    stream: pa.ipc.RecordBatchStreamWriter
    rows: int = 0


class LogWriter:
    """The log of one task attempt, in ``shards`` parts. The batches of a shard keep their order."""

    def __init__(self, store: SnapshotStore, task: TaskScope, schema: pa.Schema, shards: int = 1) -> None:
        self._files = TaskFiles(store)
        self._task = task
        self._schema = schema
        self._shards = shards
        self._segments: list[FileReference] = []
        self._shard_of_segment: list[int] = []
        self._open: dict[int, _OpenSegment] = {}

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self._segments) + sum(each.rows for each in self._open.values())

    def write(self, batch: pa.RecordBatch, shard: int = 0) -> None:
        """Append one batch. Raises ``StorageFull`` or ``SnapshotError`` when a segment cannot be stored."""
        if batch.num_rows == 0:
            return
        if shard not in self._open:
            buffer = pa.BufferOutputStream()
            self._open[shard] = _OpenSegment(buffer, pa.ipc.new_stream(buffer, self._schema, options=_OPTIONS))
        segment = self._open[shard]
        segment.stream.write_batch(batch)
        segment.rows += batch.num_rows
        if segment.buffer.tell() >= SEGMENT_BYTES // self._shards:
            self._end_segment(shard)

    def finish(self) -> Handle:
        """Complete the log: large segments are durable, small ones in the handle. Its payload is
        ``{"segments": [..]}``, with ``shards`` and ``shard_of_segment`` for several shards; empty for a task without
        rows."""
        for shard in sorted(self._open):
            self._end_segment(shard)
        payload: dict[str, Any] = {}
        if self._segments:
            payload = {"segments": [segment.model_dump() for segment in self._segments]}
            if self._shards > 1:
                payload |= {"shards": self._shards, "shard_of_segment": self._shard_of_segment}
        return Handle(
            owner=self._task.owner,
            subtask=self._task.subtask,
            rows=sum(segment.rows for segment in self._segments),
            bytes=sum(segment.bytes for segment in self._segments),
            payload=payload,
            carried=self._files.carried,
        )

    def discard(self) -> None:
        """Remove the stored segments; the sweep removes those that cannot be removed now."""
        self._open.clear()
        self._files.discard()

    def _end_segment(self, shard: int) -> None:
        segment = self._open.pop(shard)
        segment.stream.close()
        path = layout.log_segment(self._task.epoch.key, self._task.epoch.attempt, self._task.owner, self._task.subtask)
        self._segments.append(self._files.write_file(path, segment.buffer.getvalue(), segment.rows))
        self._shard_of_segment.append(shard)
        SEGMENT_DURABLE.hit(self._task.epoch.epoch)


class WriteAheadLog:
    """All logs of one sink. Serialisable; holds no connection."""

    def __init__(self, place: SinkPlace) -> None:
        self._place = place

    @property
    def store(self) -> SnapshotStore:
        """The store. Raises ``SinkError`` for a sink that was created only for analysis."""
        if self._place.store is None:
            raise SinkError(
                f"Sink {self._place.sink!r} was created without a snapshot store: it can be checked, but not run."
            )
        return self._place.store

    def open(self, task: TaskScope, schema: pa.Schema, shards: int = 1) -> LogWriter:
        """T1: open a log that belongs to this task attempt."""
        return LogWriter(self.store, task, schema, shards)

    def read(self, epoch: EpochScope, handles: Sequence[Handle]) -> Iterator[pa.RecordBatch]:
        """The epoch's batches: by subtask, each subtask's in the order it wrote them. Segments that a handle still
        carries are read from it.

        Raises ``FileMissing`` or ``FileCorrupt`` naming the segment, before yielding any of its rows.
        """
        of = f"the log of sink {self._place.sink!r}, epoch {epoch.key}"
        for handle in sorted(handles, key=lambda handle: handle.subtask):
            for segment in _segments(handle):
                data = handle.carried.get(segment.path) or self.store.read_file(segment, of)
                with pa.ipc.open_stream(data) as stream:
                    rows = 0
                    for batch in stream:
                        rows += batch.num_rows
                        yield batch
                if rows != segment.rows:
                    raise FileCorrupt(f"{self.store.place_of(segment)}, of {of}, holds {rows} rows.")

    def remove(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Delete the handles' logs: the epoch has been applied, or never will be. Missing files are ignored."""
        for handle in handles:
            for segment in _segments(handle):
                if is_apart(segment, handle):
                    self.store.delete(segment.path)
                LOG_REMOVED.hit(epoch.epoch)
        self.store.remove_empty_folder(layout.logs(epoch.key, self._place.sink))

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        """Delete files of exactly this epoch that attempts up to ``epoch.attempt`` left, except those that ``keep``
        names."""
        kept = {segment.path for handle in keep for segment in _segments(handle)}
        folder = layout.logs(epoch.key, self._place.sink)
        removed = 0
        for path in self.store.list(folder):
            if path not in kept and layout.attempt_of_log(path) <= epoch.attempt:
                removed += self.store.delete(path)
        self.store.remove_empty_folder(folder)
        return removed

    def leftovers(self) -> list[str]:
        """Every log of the sink in the store, in any branch and epoch."""
        return [path for path in self.store.list("") if f"/{layout.LOGS}/{self._place.sink}/" in f"/{path}"]


def rows_of(handles: Sequence[Handle]) -> int:
    """Return the number of rows of the handles."""
    return sum(handle.rows for handle in handles)


def has_log(handle: Handle) -> bool:
    """Return whether a log must be applied: a task that wrote to the target directly leaves none."""
    return bool(_segments(handle))


def shards_of(handles: Sequence[Handle]) -> int:
    """Return the number of shards with which the epoch was logged; 1 for an epoch without rows."""
    return max((int(handle.payload.get("shards", 1)) for handle in handles), default=1)


def of_shard(handle: Handle, shard: int) -> Handle:
    """Return the handle with the segments of one shard only."""
    segments = _segments(handle)
    shard_of_segment = handle.payload.get("shard_of_segment", [0] * len(segments))
    mine = [segment for segment, of in zip(segments, shard_of_segment, strict=True) if of == shard]
    return handle.model_copy(
        update={
            "rows": sum(segment.rows for segment in mine),
            "bytes": sum(segment.bytes for segment in mine),
            "payload": {"segments": [segment.model_dump() for segment in mine]} if mine else {},
            "carried": {each.path: handle.carried[each.path] for each in mine if each.path in handle.carried},
        }
    )


def _segments(handle: Handle) -> list[FileReference]:
    segments: Any = handle.payload.get("segments", [])
    return [FileReference.model_validate(segment) for segment in segments]
