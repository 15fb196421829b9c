"""Recorded files as a DataFrame: the executors fetch the files, and Spark parses text.

Python splits JSON and CSV files into lines, and Spark parses the lines with Spark's options, so records have the same
meaning as in files that Spark reads. Tasks check that a file still matches its record in the slice.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.types import StringType, StructField

from epochal.connectors.csv_headers import CsvHeaders
from epochal.connectors.decompression import decompressed
from epochal.connectors.fetched_files import FetchedFiles
from epochal.connectors.fetched_parquet import parquet_batches
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.file_partitions import PartitionColumns, Partitioning, folder_texts
from epochal.connectors.file_reading import FileGroup, Reader, groups_by_header
from epochal.connectors.file_records import (
    KEEP_MALFORMED,
    MALFORMED,
    Fitting,
    JsonRecords,
    batch_of_lines,
    line_schema,
    text_options,
    with_malformed,
)
from epochal.connectors.text_lines import PIECE_BYTES, LineFormat
from epochal.errors import EpochalError, SourceError
from epochal.state.type_names import quoted, type_name
from epochal.tasks.arrow_tasks import prepare_worker
from epochal.tasks.reporting import as_failure, encode

_FIRST_BYTES = 64 * 1024
FILE = StructField("_file", StringType())
"""Column with the path of a row's file, for errors about invalid values in folder names."""

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType


def frame_of(
    files: FetchedFiles,
    reader: Reader,
    spark: SparkSession,
    schema: StructType,
    records: Sequence[FileRecord],
    dropped: Observation | None,
    headers: CsvHeaders,
) -> DataFrame:
    """The records of these files that fit ``schema``. ``dropped`` counts the others, as ``rows``."""
    import pyspark.sql.functions as F

    if not records:
        return spark.createDataFrame([], schema)
    partitioning = Partitioning.of(files.location, reader.declared)
    places = partitioning.places(record.path for record in records)
    groups = {FileGroup(place): paths for place, paths in places.items()}
    if reader.has_header:  # files without a header have no rows
        names = headers.of(spark, [record.path for record in records])
        groups = groups_by_header(names, places, schema) or groups
    by_path = {record.path: record for record in records}
    frames = [
        _frame_of_group(files, reader, spark, schema, group, [by_path[path] for path in paths])
        for group, paths in groups.items()
    ]
    united = reduce(type(frames[0]).unionAll, frames)
    if reader.format == "parquet":
        return united
    return Fitting.of(schema, reader.malformed, F.col("_file")).kept(united, dropped).drop("_file")


def headers_of(files: FetchedFiles, reader: Reader) -> CsvHeaders:
    """The headers of CSV files."""
    return CsvHeaders(reader.options, partial(_beginning, files), is_remote=lambda path: True)


def _beginning(files: FetchedFiles, path: str) -> Iterator[bytes]:
    with files.translated(f"read {path}", "Source"):
        record = FileRecord(modified_ns=0, path=path, size=0)
        yield from decompressed(path, files.pieces(record, _FIRST_BYTES))


def _frame_of_group(
    files: FetchedFiles,
    reader: Reader,
    spark: SparkSession,
    schema: StructType,
    group: FileGroup,
    records: Sequence[FileRecord],
) -> DataFrame:
    """The declared columns and, for text formats, ``_malformed`` and ``_file``."""
    import pyspark.sql.functions as F
    from pyspark.sql.pandas.types import to_arrow_schema

    place = group.place
    columns = PartitionColumns.of(schema, place)
    texts = columns.texts
    tasks = shared_out(records, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    if reader.format == "parquet":
        arrow = to_arrow_schema(columns.files, timezone="UTC")
        found = type(schema)([*columns.files.fields, *texts.fields, *([FILE] if columns.keys else [])])
        task = ReadParquet(files, tasks, arrow, place.keys, tuple(texts.names))
        return columns.typed(numbers.mapInArrow(task, found), F.col(FILE.name))
    lines = ReadLines(files, tasks, LineFormat.of(reader.format, reader.options), place.keys, tuple(texts.names))
    found = type(schema)([*line_schema().fields, *texts.fields])
    parsed = _parsed(numbers.mapInArrow(lines, found), reader, columns, group)
    others = ("_file", MALFORMED)
    return columns.typed(parsed, F.col("_file"), others).select(*map(quoted, [*schema.names, *others]))


@dataclass(frozen=True)
class ReadLines:
    """Task that reads the lines of its files, as ``_file`` and ``_line``, and the values of their folders."""

    files: FetchedFiles
    tasks: Sequence[Sequence[FileRecord]]
    format: LineFormat
    keys: tuple[str, ...]
    texts: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with reported():
            for record in files_of(self.tasks, batches):
                yield from _unchanged(self.files, record, self._lines(record))

    def _lines(self, record: FileRecord) -> Iterator[pa.RecordBatch]:
        texts = folder_texts(record.path, self.keys, self.texts)
        pieces = decompressed(record.path, self.files.pieces(record, PIECE_BYTES))
        for lines in self.format.lines(pieces):
            yield batch_of_lines(record.path, lines, texts)


@dataclass(frozen=True)
class ReadParquet:
    """Task that reads the rows of its files, with the columns of ``schema``, and the values of their folders."""

    files: FetchedFiles
    tasks: Sequence[Sequence[FileRecord]]
    schema: pa.Schema
    keys: tuple[str, ...]
    texts: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        with reported():
            for record in files_of(self.tasks, batches):
                rows = parquet_batches(self.files, record, self.schema)
                yield from _unchanged(self.files, record, self._with_texts(record, rows) if self.texts else rows)

    def _with_texts(self, record: FileRecord, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        texts = {**folder_texts(record.path, self.keys, self.texts), FILE.name: record.path}
        for batch in rows:
            for name, value in texts.items():
                batch = batch.append_column(name, pa.repeat(pa.scalar(value, pa.string()), batch.num_rows))
            yield batch


class Sized(Protocol):
    """A file that tasks read."""

    @property
    def size(self) -> int: ...


File = TypeVar("File", bound=Sized)


def shared_out(records: Sequence[File], tasks: int) -> list[list[File]]:
    """Distribute the files over at most ``tasks`` tasks: the largest first, each to the task with the fewest bytes."""
    shares: list[list[File]] = [[] for _ in range(min(tasks, len(records)))]
    sizes = [0] * len(shares)
    for record in sorted(records, key=lambda record: record.size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(record)
        sizes[least] += record.size + 1
    return shares


def files_of(tasks: Sequence[Sequence[File]], batches: Iterable[pa.RecordBatch]) -> Iterator[File]:
    """The files of the tasks whose numbers are in the batches."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from tasks[number]


def _unchanged(files: FetchedFiles, record: FileRecord, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass the batches on, then raise ``SourceChanged`` if the file was replaced during the read."""
    with files.translated(f"read {record.path}", "Source"):
        try:
            yield from batches
        except (EOFError, zlib.error) as error:
            raise SourceError(
                f"{record.path} cannot be decompressed: {error}. Move it away, or rewrite it under a new name."
            ) from error
        files.check_unchanged(record)


def _parsed(lines: DataFrame, reader: Reader, columns: PartitionColumns, group: FileGroup) -> DataFrame:
    """Parse lines into the columns of files and folders, ``_file`` and ``_malformed``."""
    import pyspark.sql.functions as F

    options = text_options(reader.options)
    if reader.format == "json":
        # Spark's reader of lines removes a byte order mark from each.
        line = F.ltrim("_line", F.lit(codecs.BOM_UTF8.decode())).alias("_line")
        lines = lines.select("_file", line, *map(quoted, columns.texts.names)).where(
            F.trim("_line", F.lit(" \t\r\n")) != ""
        )
        return JsonRecords.of(columns.files, options, columns.texts.names).records(lines)
    texts = [quoted(name) for name in columns.texts.names]
    found = columns.files if group.layout is None else group.layout.schema(columns.files)
    record = F.from_csv("_line", _ddl(with_malformed(found)), options | KEEP_MALFORMED)
    # The row number prevents Spark from parsing twice: Spark moves no filter past a nondeterministic column.
    parsed = lines.select("_file", *texts, record.alias("_record"), F.monotonically_increasing_id().alias("_number"))
    fields = [f"_record.{quoted(name)}" for name in (*columns.files.names, MALFORMED)]
    return parsed.where("_number >= 0").select("_file", *texts, *fields)


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{quoted(field.name)} {type_name(field.dataType)}" for field in schema.fields)


@contextmanager
def reported() -> Iterator[None]:
    """Append to Epochal's errors raised in the block the line from which the driver restores them."""
    try:
        yield
    except EpochalError as error:
        raise type(error)(f"{error.message}\n{encode(as_failure(error))}") from error
