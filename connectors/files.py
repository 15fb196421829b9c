"""Files as source, table and sink: JSON lines, CSV and Parquet.

``source`` follows a folder that grows. A new file must appear whole: write it under another name (``_x``, ``.x``, or in
another folder of the same file system) and rename it. A file that was taken must stay as it is; new data goes to new
files. Files are taken in the order of their modification times, those of one time by path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.addresses import check_location
from epochal.connectors.deliveries import EXACTLY_ONCE, check_delivery
from epochal.connectors.dropped_records import DroppedRecords
from epochal.connectors.file_listing import FileRecord, current, list_files, list_first
from epochal.connectors.file_partitions import Partitioning
from epochal.connectors.file_reading import (
    FORMATS,
    Format,
    Frames,
    Reader,
    checked_reader,
    declared_schema,
    estimated_rows,
)
from epochal.connectors.file_records import Malformed, compression_of
from epochal.connectors.file_slices import Missing, TakenFiles, Taking, changed, first_within, records_of
from epochal.connectors.sink_modes import Mode, described, taken_by_folder
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.errors import EpochalError, OptionError, SchemaError, SourceError
from epochal.pipeline.definitions import (
    SinkDefinition,
    SourceDefinition,
    TableDefinition,
    absolute,
    check_choice,
    check_options,
    refresh_interval,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SAMPLE = 64 * 1024


def source(
    path: str,
    format: Format = "parquet",
    schema: str | None = None,
    *,
    max_files: int | None = None,
    bounded: bool = False,
    punctuation: str | None = None,
    recursive: bool = False,
    missing: Missing = "fail",
    malformed: Malformed = "fail",
    **options: Any,
) -> SourceDefinition:
    """The records of a file, a glob or a folder's files, those that come later too, oldest file first.

    Subfolders named ``key=value`` are read; the key is a column if ``schema`` declares it. ``recursive`` reads every
    subfolder, and no folder's name is a column. A folder whose files lie in other subfolders only is refused.
    ``missing``: a file that was listed and is missing before it is read fails the attempt, or is recorded in the
    epoch's slice and skipped (``"skip"``).

    ``schema`` is Spark DDL, needed for JSON and CSV. ``max_files`` bounds an epoch's slice. ``bounded``: the files that
    are there when the run begins are all that there are, and the source ends with them. A record that does not fit
    the schema fails the epoch, or is dropped and counted in the log (``malformed="drop"``). ``options`` are Spark's for
    the format (``header``, ``sep``, ``multiLine``, ``timestampFormat``, ..).

    ``punctuation``: a pattern of file names, such as ``*.end``. A file with such a name ends an epoch, and nothing else
    does. Raises ``OptionError``.
    """
    reader = _reader("files.source", path, format, schema, malformed, recursive, options)
    taking = Taking.checked("files.source", max_files, bounded, punctuation, missing)
    return SourceDefinition(
        kind="files",
        make=partial(FilesSource, path, reader, taking),
        description={"path": path, "format": format, **reader.described, **taking.described},
    )


def table(
    path: str,
    format: Format = "parquet",
    schema: str | None = None,
    *,
    recursive: bool = False,
    refresh: str | None = None,
    malformed: Malformed = "fail",
    **options: Any,
) -> TableDefinition:
    """All records of the files that exist when an attempt starts, to join with. Arguments as :func:`source`.

    ``refresh``: list the files again in the first epoch that is this much later by epoch time, such as ``"1 hour"``.
    """
    reader = _reader("files.table", path, format, schema, malformed, recursive, options)
    return TableDefinition(
        kind="files",
        read=partial(_read_table, path, reader),
        description={"path": path, "format": format, **reader.described},
        refresh=refresh_interval("files.table", refresh),
    )


def sink(
    path: str,
    format: Format = "parquet",
    *,
    mode: Mode = "append",
    delivery: Delivery | None = None,
    **options: Any,
) -> SinkDefinition:
    """A folder in which an epoch's rows appear at once, as ``epoch=N/``. No row is missing or doubled, whatever fails.

    The folder is this application's own, on a file system that driver and executors share. Spark reads it with
    ``spark.read.parquet(path)`` and adds the column ``epoch``. ``mode``: ``append`` for rows that stay; ``updates`` for
    those that replace earlier ones (what ``aggregate`` gives): an epoch's folder then has the rows that changed in it.
    ``delivery`` is ``exactly_once``.
    """
    check_options("files.sink", options, ("mode", "delivery"))
    check_delivery("files.sink", delivery, EXACTLY_ONCE, "an epoch's rows appear as one folder, or not at all")
    check_choice("files.sink", "format", format, FORMATS)
    return SinkDefinition(
        kind="files",
        make=partial(_backend, path, format),
        description={"path": path, "format": format, **described(mode)},
        takes=taken_by_folder("files.sink", mode),
    )


class FilesSource(Source):
    """Slices are lists of files, each with size and modification time; positions count the files taken so far."""

    def __init__(self, path: str, reader: Reader, taking: Taking) -> None:
        self._location = absolute(path)
        self._reader = reader
        self._taking = taking
        self._taken = TakenFiles(taking.missing)
        self._schema: StructType | None = None
        self._frames: Frames | None = None
        self._dropped = DroppedRecords(self._location)

    @property
    def kind(self) -> str:
        return "files"

    @property
    def bounded(self) -> bool:
        return self._taking.bounded

    @property
    def ended(self) -> bool:
        return self._taken.ended

    @property
    def punctuated(self) -> bool:
        return self._taking.punctuation is not None

    def schema(self, spark: SparkSession) -> StructType:
        if self._schema is None:
            self._schema = read_schema(self._location, self._reader, spark)
        return self._schema

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._taken.restore(checkpoint, slices)

    def checkpoint(self) -> dict[str, Any]:
        return self._taken.checkpoint()

    def limit_to_available(self) -> None:
        self._taken.limit_to(self._list())

    def plan(self, limits: SliceLimits) -> Slice | None:
        new, taking = self._taken.new_among(self._list()), self._taking
        if taking.punctuation is not None:
            new, limits = self._taken.up_to_punctuation(new, taking.punctuation, taking.bounded), SliceLimits(None)
        chosen, rows = self._within(limits, new[: taking.max_files])
        return self._taken.next_slice(chosen, rows, self.punctuated)

    def _list(self) -> list[FileRecord]:
        listed = list_files if self._taken.begun else list_first
        return listed(self._location, self._reader.recursive)

    def accept(self, slice: Slice) -> None:
        self._taken.accept(slice)

    def backlog(self) -> Backlog:
        return Backlog(files=self._taken.left, skipped=self._taken.skipped)

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        records = records_of(slice)
        missing = []
        for record in records:
            now = current(record.path)
            if now is None:
                missing.append(record)
            elif now != record:
                raise changed(record, now)
        if missing:
            raise self._taken.missing(missing)
        counted = self._reader.malformed == "drop" and self._reader.format != "parquet"
        dropped = self._dropped.of(slice) if counted else None
        return self._frames_of(spark).of([record.path for record in records], dropped)

    def most_rows(self, slice: Slice) -> int | None:
        """A row of text has at least one byte."""
        records = records_of(slice)
        if (
            slice.rows is not None
            or self._reader.format == "parquet"
            or any(compression_of(record.path) for record in records)
        ):
            return slice.rows
        return sum(record.size for record in records)

    def unreadable(self, slice: Slice) -> EpochalError | None:
        missing = [record for record in records_of(slice) if current(record.path) is None]
        return self._taken.missing(missing) if missing else None

    def _frames_of(self, spark: SparkSession) -> Frames:
        if self._frames is None or self._frames.spark is not spark:
            self._frames = _frames(self._location, self._reader, spark, self.schema(spark))
        return self._frames

    def acknowledge(self, slice: Slice) -> None:
        self._dropped.log(slice)

    def _within(self, limits: SliceLimits, new: Sequence[FileRecord]) -> tuple[list[FileRecord], int | None]:
        """The first files that together keep to the limit, at least one; and their rows, where these are known."""
        exact = self._reader.format == "parquet"
        if limits.max_records is None and not exact:
            return list(new), None
        rows_of = _parquet_rows if exact else _text_rows
        chosen, total = first_within(limits.max_records, new, rows_of)
        return chosen, total if exact else None


def read_schema(location: str, reader: Reader, spark: SparkSession) -> StructType:
    """The declared schema, or that of the newest Parquet file. Raises ``SchemaError``, ``SourceError`` with the fix."""
    from pyspark.errors import PySparkException

    if reader.schema is not None:
        return declared_schema(location, reader.schema)
    files = list_first(location, reader.recursive)
    if not files:
        raise SourceError(
            f"There is no file at {location} to learn the columns from. Add one, or give schema='column type, ..'."
        )
    try:
        return reader.infer(spark, [files[-1].path])
    except PySparkException as error:
        if error.getCondition() != "COLUMN_ALREADY_EXISTS":
            raise
        raise SchemaError(
            f"{files[-1].path} has columns whose names differ only by case, which is ambiguous. Write the file "
            "again under other names, or declare a schema of the other columns."
        ) from error


def _frames(location: str, reader: Reader, spark: SparkSession, schema: StructType) -> Frames:
    return Frames(reader, spark, schema, Partitioning.of(location, reader.declared))


def _reader(
    what: str,
    path: str,
    format: Format,
    schema: str | None,
    malformed: Malformed,
    recursive: bool,
    options: dict[str, Any],
) -> Reader:
    if not path.strip():
        raise OptionError(f"{what} needs a path: a file, a folder or a glob such as 'data/*.json'.")
    check_location(what, path)
    others = ("path", "format", "schema", "malformed", "recursive")
    return checked_reader(what, format, schema, malformed, options, others, recursive=recursive)


def _read_table(path: str, reader: Reader, spark: SparkSession) -> DataFrame:
    location = absolute(path)
    schema = read_schema(location, reader, spark)
    records = list_first(location, reader.recursive)
    return _frames(location, reader, spark, schema).of([record.path for record in records])


def _backend(path: str, format: str, place: SinkPlace) -> SinkBackend:
    from epochal.backends.files import FilesBackend

    return FilesBackend(path, format)


def _parquet_rows(record: FileRecord) -> int:
    import fsspec
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with fsspec.open(record.path, "rb") as file:
            return int(pyarrow.parquet.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{record.path} is not a whole Parquet file: {error}. Move it away, or write it again under a new name."
        ) from error


def _text_rows(record: FileRecord) -> int:
    import fsspec

    with fsspec.open(record.path, "rb") as file:
        return estimated_rows(record.path, record.size, file.read(_SAMPLE))
