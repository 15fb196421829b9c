"""Transaction of one task attempt of the Delta sink, and the entries of its files in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from epochal.backends.delta_lake.statistics import statistics_of
from epochal.backends.file_formats import ParquetWriter
from epochal.backends.tables.folder import NewFile, StagedFile, WritableFolder, unique_name
from epochal.backends.text_columns import check_utf8
from epochal.contracts.backend import SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import RowRejected, SinkError
from epochal.faults import declare

UPLOADED: Final = declare("T3.table.uploaded", "a file of the task is in the table's folder, no version names it")
FILE_BYTES: Final = 256 * 1024 * 1024
"""Size at which a task begins another file, unless ``target_file_size`` is set."""
_OPEN_FILES: Final = 32
"""Maximum number of partitions that a task writes at the same time; with more, it begins further files."""
_HELD_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of the rows that the open files of several partitions hold in memory."""

Partition = tuple[str | None, ...]
"""Values of the partition columns, as the log has them."""


@dataclass(frozen=True)
class LogEntry:
    """A file as the log of the table names it. ``partition``: values by column. ``statistics``: JSON."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None]
    statistics: str

    @property
    def file(self) -> StagedFile:
        return StagedFile(self.path, self.size)


def entries_of(handles: Iterable[Handle]) -> list[LogEntry]:
    """The files that the handles name."""
    return [LogEntry(**each) for handle in handles for each in handle.payload.get("files", [])]


def columns_written(handles: Iterable[Handle]) -> list[dict[str, Any]]:
    """Columns of the files of each handle with rows, see :func:`epochal.backends.delta_lake.schema.columns_of`."""
    return [handle.payload["columns"] for handle in handles if handle.payload.get("files")]


@dataclass(frozen=True)
class RowShape:
    """How rows are written. ``subject``: the sink, in messages; ``schema``: of the rows, with Delta's types;
    ``columns``: the same as the log has it; ``required``: columns that are NOT NULL in the table; ``keys``: columns by
    which rows replace others."""

    subject: str
    schema: pa.Schema
    columns: Mapping[str, Any]
    partition_by: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()

    def conforming(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with Delta's types. Raises ``RowRejected`` for a null in a column that is NOT NULL or a key, for an
        empty text in a partition column, and for text that is not UTF-8."""
        check_utf8(batch, "Delta")
        for name in self.required:
            if batch.column(name).null_count:
                raise RowRejected(
                    f"{self.subject}: a row has no value for column {name!r}, which is NOT NULL in the table. "
                    "Filter such rows, or replace the null with coalesce."
                )
        for name in self.keys:
            if batch.column(name).null_count:
                raise RowRejected(
                    f"{self.subject}: a row has no value for the key {name!r}: it would be inserted again and again. "
                    "Filter these rows, or replace the null with coalesce."
                )
        for name in self.partition_by:
            column = batch.column(name)
            if pa.types.is_string(column.type) and pc.any(pc.equal(column, "")).as_py():
                raise RowRejected(
                    f"{self.subject}: a row has an empty text in {name!r}, by which the table is partitioned. Delta "
                    "reads it as null. Filter these rows, or replace the text."
                )
        return batch if batch.schema.equals(self.schema) else batch.cast(self.schema)

    @property
    def stored(self) -> pa.Schema:
        """Columns of the files: partition columns are in the log only."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])


@dataclass
class _OpenFile:
    """A file of one partition that is being written."""

    path: str
    new: NewFile
    writer: ParquetWriter
    rows: int
    with_nan: set[str]


class DeltaTransaction(SinkTransaction):
    """One task attempt's files; none without rows. ``place``: their folder, in that of the table; ``file_bytes``: size
    at which another file begins."""

    def __init__(
        self,
        folder: WritableFolder,
        place: str,
        shape: RowShape,
        task: TaskScope,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._folder = folder
        self._place = place
        self._file_bytes = file_bytes
        self._shape = shape
        self._task = task
        self._name = unique_name(task)
        self._open: dict[Partition, _OpenFile] = {}
        self._held_bytes = 0
        self._numbers = count()
        self._sent: list[str] = []
        self._entries: list[LogEntry] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        for partition, part in self._divided(self._shape.conforming(batch)):
            self._append(partition, part)

    def pre_commit(self) -> Handle:
        for partition in list(self._open):
            self._upload(partition)
        payload: dict[str, Any] = {}
        if self._entries:
            payload = {"files": [asdict(entry) for entry in self._entries], "columns": dict(self._shape.columns)}
        return Handle(
            owner=self._task.owner,
            subtask=self._task.subtask,
            rows=sum(entry.rows for entry in self._entries),
            bytes=sum(entry.size for entry in self._entries),
            payload=payload,
        )

    def discard(self) -> None:
        for part in self._open.values():
            with suppress(OSError, ValueError, pa.ArrowException):
                part.writer.finish()
            part.new.discard()
        self._open.clear()
        for path in self._sent:
            with suppress(SinkError):  # the sweep finds a file that cannot be removed now
                self._folder.delete(path)

    def _divided(self, rows: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        """The rows of each partition, in their order, without the partition columns."""
        names = self._shape.partition_by
        stored = rows.select(self._shape.stored.names)
        if not names:
            yield (), stored
            return
        values = [rows.column(name).cast(pa.string()) for name in names]
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for column in values:
            encoded = column.dictionary_encode(null_encoding="encode")
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
            codes = np.unique(codes, return_inverse=True)[1]
        order = np.argsort(codes, kind="stable")
        bounds = np.flatnonzero(np.diff(codes[order], prepend=-1))
        sorted_rows = stored.take(pa.array(order))
        for first, end in zip(bounds, [*bounds[1:], rows.num_rows], strict=True):
            partition = tuple(column[int(order[first])].as_py() for column in values)
            yield partition, sorted_rows.slice(first, end - first)

    def _append(self, partition: Partition, rows: pa.RecordBatch) -> None:
        many = partition not in self._open and len(self._open) >= _OPEN_FILES
        if many or (len(self._open) > 1 and self._held_bytes > _HELD_BYTES):
            for each in list(self._open):
                self._upload(each)
            self._held_bytes = 0
        self._held_bytes += rows.nbytes
        if partition not in self._open:
            path = f"{self._place}/{self._name}-{next(self._numbers):05}.parquet"
            new = self._folder.create(path)
            self._open[partition] = _OpenFile(path, new, ParquetWriter(new.file, self._shape.stored), 0, set())
        part = self._open[partition]
        with part.new.errors():
            part.writer.write(rows)
            full = part.new.file.tell() >= self._file_bytes
        part.rows += rows.num_rows
        part.with_nan |= _with_nan(rows)
        if full:
            self._upload(partition)

    def _upload(self, partition: Partition) -> None:
        part = self._open[partition]
        with part.new.errors():
            part.writer.finish()
            size = part.new.file.tell()
            part.new.file.seek(0)
            footer = pq.read_metadata(part.new.file)
        del self._open[partition]
        self._sent.append(part.path)
        part.new.finish()
        UPLOADED.hit(self._task.epoch.epoch)
        values = dict(zip(self._shape.partition_by, partition, strict=True))
        text = statistics_of(footer, self._shape.stored, part.with_nan)
        self._entries.append(LogEntry(part.path, size, part.rows, values, text))


def _with_nan(rows: pa.RecordBatch) -> set[str]:
    return {
        field.name
        for field, column in zip(rows.schema, rows.columns, strict=True)
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py()
    }
