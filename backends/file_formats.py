"""Writers of the files sink: Arrow batches into one local file, in the formats that Spark reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from epochal.backends import json_lines

ROW_GROUP = 128 * 1024
"""Rows that are gathered into one Parquet row group; Spark's batches are far smaller."""


class Writer(ABC):
    """Writes batches of one schema into an open file."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is still held back. The file stays open."""


class ParquetWriter(Writer):
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._rows += batch.num_rows
        if self._rows >= ROW_GROUP:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema), row_group_size=ROW_GROUP)
            self._held, self._rows = [], 0


class CsvWriter(Writer):
    """With a header line; text in quotation marks, a null is empty. Spark reads an empty string back as null."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pyarrow.csv.CSVWriter(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()


class JsonWriter(Writer):
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(json_lines.encode(batch))

    def finish(self) -> None:
        """Nothing is held back."""


WRITERS: dict[str, type[ParquetWriter] | type[CsvWriter] | type[JsonWriter]] = {
    "parquet": ParquetWriter,
    "csv": CsvWriter,
    "json": JsonWriter,
}


def checksum(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
