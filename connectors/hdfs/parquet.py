"""Parquet files of HDFS, read by ranges: footers in the driver, columns in the executors."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from epochal.backends.hdfs.client import WebHdfs
from epochal.connectors.file_listing import FileRecord
from epochal.errors import SourceError
from epochal.state.types import shown_type, with_spark_types

BATCH_ROWS = 50_000


class HdfsFile(io.RawIOBase):
    """A file that can be read from anywhere: each read is a request of its own."""

    def __init__(self, hdfs: WebHdfs, path: str, size: int) -> None:
        super().__init__()
        self._hdfs = hdfs
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size < 0 else min(size, left)
        data = self._hdfs.read(self._path, self._position, length) if length else b""
        self._position += len(data)
        return data


def parquet_schema(hdfs: WebHdfs, record: FileRecord) -> pa.Schema:
    """The columns that the file says it has. Raises ``SourceError`` when it is no Parquet."""
    with _opened(hdfs, record) as file:
        return file.schema_arrow


def parquet_rows(hdfs: WebHdfs, record: FileRecord) -> int:
    """Raises ``SourceError`` when it is no Parquet."""
    with _opened(hdfs, record) as file:
        return int(file.metadata.num_rows)


def parquet_batches(hdfs: WebHdfs, record: FileRecord, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The file's rows with exactly the columns of ``schema``, by name; one that the file lacks is null.

    Raises ``SourceError`` naming the file, and the column whose values are of another type.
    """
    with _opened(hdfs, record) as file:
        there = {name.casefold(): name for name in file.schema_arrow.names}
        names = [there[field.name.casefold()] for field in schema if field.name.casefold() in there]
        batches = file.iter_batches(BATCH_ROWS, columns=names)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, pa.ArrowException):
                    raise _damaged(record, error) from error
                raise
            if batch is None:
                return
            columns = {name.casefold(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            yield pa.RecordBatch.from_arrays(
                [_conformed(record, field, columns.get(field.name.casefold()), batch.num_rows) for field in schema],
                schema=schema,
            )


def _conformed(record: FileRecord, field: pa.Field, column: pa.Array | None, rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(rows, field.type)
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SourceError(
            f"Column {field.name!r} of {record.path} is {shown_type(column.type)}, which cannot be read as "
            f"{shown_type(field.type)}: {with_spark_types(error)}. "
            "Declare the type that the files have, and cast in the pipeline."
        ) from error


def _opened(hdfs: WebHdfs, record: FileRecord) -> pq.ParquetFile:
    file = pa.PythonFile(HdfsFile(hdfs, record.path, record.size), mode="r")
    try:
        return pq.ParquetFile(file, pre_buffer=True, coerce_int96_timestamp_unit="us")
    except pa.ArrowException as error:
        raise _damaged(record, error) from error


def _damaged(record: FileRecord, error: Exception) -> SourceError:
    return SourceError(
        f"{record.path} is not a whole Parquet file: {error}. Move it away, or write it again under a new name."
    )
