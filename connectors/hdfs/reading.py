"""Recorded files of HDFS as a DataFrame: the executors fetch them, Spark parses what is text.

JSON and CSV are cut into lines in Python and parsed by Spark, with Spark's options: so a record means here what it
means to ``files.source``. Every file is looked at again once it has been read: only what its slice recorded counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.backends.hdfs.client import WebHdfs, translated
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.file_reading import (
    KEEP_MALFORMED,
    LINES,
    LINES_DDL,
    Fitting,
    JsonRecords,
    Reader,
    text_options,
    with_malformed,
)
from epochal.connectors.file_slices import changed
from epochal.connectors.hdfs.listing import record_of
from epochal.connectors.hdfs.parquet import parquet_batches
from epochal.connectors.text_lines import PIECE_BYTES, LineFormat
from epochal.errors import EpochalError, SourceError
from epochal.state.type_names import quoted, type_name
from epochal.tasks.reporting import as_failure, encode
from epochal.tasks.worker import prepare_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType


def frame_of(
    hdfs: WebHdfs,
    reader: Reader,
    spark: SparkSession,
    schema: StructType,
    records: Sequence[FileRecord],
    dropped: Observation | None,
) -> DataFrame:
    """The records of these files that fit ``schema``; ``dropped`` then learns how many did not, as ``rows``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not records:
        return spark.createDataFrame([], schema)
    tasks = _shared_out(records, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    if reader.format == "parquet":
        arrow = to_arrow_schema(schema, timezone="UTC")
        return numbers.mapInArrow(ReadParquet(hdfs, tasks, arrow), schema)
    lines = numbers.mapInArrow(ReadLines(hdfs, tasks, LineFormat.of(reader.format, reader.options)), LINES_DDL)
    return _parsed(lines, reader, schema, dropped)


@dataclass(frozen=True)
class ReadLines:
    """A task: the lines of its share of the files, as ``_file`` and ``_line``."""

    hdfs: WebHdfs
    tasks: Sequence[Sequence[FileRecord]]
    format: LineFormat

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with _reported():
            for record in _records(self.tasks, batches):
                yield from _unchanged(self.hdfs, record, self._lines(record))

    def _lines(self, record: FileRecord) -> Iterator[pa.RecordBatch]:
        for lines in self.format.lines(self.hdfs.pieces(record.path, PIECE_BYTES)):
            file = pa.repeat(record.path, len(lines))
            yield pa.RecordBatch.from_arrays([file, lines], schema=LINES)


@dataclass(frozen=True)
class ReadParquet:
    """A task: the rows of its share of the files, with the columns of ``schema``."""

    hdfs: WebHdfs
    tasks: Sequence[Sequence[FileRecord]]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with _reported():
            for record in _records(self.tasks, batches):
                yield from _unchanged(self.hdfs, record, parquet_batches(self.hdfs, record, self.schema))


def _shared_out(records: Sequence[FileRecord], tasks: int) -> list[list[FileRecord]]:
    """The files over at most ``tasks`` tasks, the largest first, each to the task that has the least."""
    shares: list[list[FileRecord]] = [[] for _ in range(min(tasks, len(records)))]
    sizes = [0] * len(shares)
    for record in sorted(records, key=lambda record: record.size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(record)
        sizes[least] += record.size + 1
    return shares


def _records(tasks: Sequence[Sequence[FileRecord]], batches: Iterable[pa.RecordBatch]) -> Iterator[FileRecord]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from tasks[number]


def _unchanged(hdfs: WebHdfs, record: FileRecord, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; then an error, if the file was replaced while it was being read."""
    with translated("Source", f"read {record.path}", SourceError, SourceError):
        yield from batches
        status = hdfs.status(record.path)
    now = record_of(status) if status is not None else None
    if now != record:
        raise changed(record, now)


def _parsed(lines: DataFrame, reader: Reader, schema: StructType, dropped: Observation | None) -> DataFrame:
    import pyspark.sql.functions as F

    options = text_options(reader.options)
    if reader.format == "json":
        fields = JsonRecords.of(schema, options).records(lines)
    else:
        record = F.from_csv("_line", _ddl(with_malformed(schema)), options | KEEP_MALFORMED)
        # The row's number keeps Spark from parsing twice: it moves no filter past a column that is not deterministic.
        parsed = lines.select("_file", record.alias("_record"), F.monotonically_increasing_id().alias("_number"))
        fields = parsed.where("_number >= 0").select("_file", "_record.*")
    return Fitting.of(schema, reader.malformed, F.col("_file")).kept(fields, dropped).drop("_file")


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{quoted(field.name)} {type_name(field.dataType)}" for field in schema.fields)


@contextmanager
def _reported() -> Iterator[None]:
    """Inside the block, Epochal's errors end with the line by which the driver knows them again."""
    try:
        yield
    except EpochalError as error:
        raise type(error)(f"{error.message}\n{encode(as_failure(error))}") from error
