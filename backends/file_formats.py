"""Writers of the files sink: Arrow batches into one local file, in the formats that Spark reads."""

from __future__ import annotations

import errno
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet

from epochal.backends import csv_lines, json_lines
from epochal.errors import SinkError, StorageFull

ROW_GROUP = 128 * 1024
"""Number of rows in one Parquet row group; Spark's batches are far smaller."""
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Maximum size in memory of a row group of wide rows; a group is held in memory until it is complete."""
_CODEC = "zstd"
_PLACES, _PLACE_BYTES, _WORTH = 8, 16 * 1024, 0.95
"""Sampling of a column: number of places, bytes per place, and the compressed share above which it stays
uncompressed."""


class Writer(ABC):
    """Writes batches of one schema into an open file."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""

    @abstractmethod
    def finish(self) -> None:
        """Write the buffered rows. The file stays open."""


class ParquetWriter(Writer):
    """Writes row groups of :data:`ROW_GROUP` rows, or :data:`ROW_GROUP_BYTES` if rows are wide, compressed with zstd.

    Binary columns that zstd does not reduce, such as pictures, are stored uncompressed. The first row group decides,
    since compressing every row group would account for half of the cost of such a file."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._schema = schema
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush().close()

    def _flush(self) -> pyarrow.parquet.ParquetWriter:
        rows = pa.Table.from_batches(self._held, self._schema)
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema, compression=_compression(rows))
        if self._held:
            self._writer.write_table(rows, row_group_size=ROW_GROUP)
            self._held, self._rows, self._bytes = [], 0, 0
        return self._writer


class CsvWriter(Writer):
    """Writes a header line, and Spark's dialect of CSV (:mod:`epochal.backends.csv_lines`)."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        file.write(csv_lines.header(schema))

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(csv_lines.encode(batch))

    def finish(self) -> None:
        """Do nothing: all rows are written."""


class JsonWriter(Writer):
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(json_lines.encode(batch))

    def finish(self) -> None:
        """Do nothing: all rows are written."""


WRITERS: dict[str, type[ParquetWriter] | type[CsvWriter] | type[JsonWriter]] = {
    "parquet": ParquetWriter,
    "csv": CsvWriter,
    "json": JsonWriter,
}


def _compression(rows: pa.Table) -> str | dict[str, str]:
    """The codec of all columns, or of each leaf by its path."""
    dense = {name for name, column in zip(rows.schema.names, rows.columns, strict=True) if _is_dense(column)}
    if not dense:
        return _CODEC
    return {path: "none" if path in dense else _CODEC for path in _leaves(rows.schema)}


def _is_dense(column: pa.ChunkedArray) -> bool:
    """Return whether this is a column of bytes that zstd does not make smaller."""
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    if not is_bytes or column.nbytes < _PLACES * _PLACE_BYTES:
        return False
    rows = max(1, len(column) * _PLACE_BYTES // column.nbytes)
    places = (column.slice(place * len(column) // _PLACES, rows) for place in range(_PLACES))
    sample = b"".join(value.as_buffer()[:_PLACE_BYTES] for place in places for value in place if value.is_valid)
    return len(pa.compress(sample, _CODEC, asbytes=True)) > len(sample) * _WORTH


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the leaf columns under Parquet's names: ``list.list.element``."""
    empty = pa.BufferOutputStream()
    pyarrow.parquet.ParquetWriter(empty, schema).close()
    columns = pyarrow.parquet.ParquetFile(pa.BufferReader(empty.getvalue())).schema
    return [columns.column(place).path for place in range(len(columns))]


def temporary_file_error(subject: str, error: OSError) -> SinkError | StorageFull:
    """The error of a task that could not write its temporary file. ``subject``: the sink."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"{subject} could not write a temporary file: no space is left in {tempfile.gettempdir()}. Free space; the "
            "step is retried."
        )
    return SinkError(f"{subject} could not write a temporary file: {error}. Check {tempfile.gettempdir()}.")


def checksum(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
