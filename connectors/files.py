"""File source, table and sink: JSON lines, CSV and Parquet, on file systems and object stores.

``source`` follows a growing folder. Files must appear atomically: write a file under another name (``_x``, ``.x``, or
in another folder of the same file system), then rename it. Do not change a file after an epoch has taken it; write new
data to new files. The source takes files in the order of their modification times, and files with equal times by path.

On object stores (``s3://bucket/path``, ``gs://..``, ``az://..``), Python tasks read the files
(:mod:`epochal.connectors.object_files`), and the sink publishes lists of files
(:mod:`epochal.backends.object_files.sink`). Credentials come from the environment, or from the options of
:data:`epochal.backends.object_files.address.STORE_OPTIONS`. Elsewhere Spark reads files by path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.addresses import check_location
from epochal.backends.object_files.address import STORE_OPTIONS, ObjectLocation
from epochal.connectors.decompression import compression_of
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
from epochal.connectors.file_records import Malformed
from epochal.connectors.file_slices import Missing, TakenFiles, Taking, changed, first_within, records_of
from epochal.connectors.object_stores import (
    check_spark_options,
    object_backend,
    object_source,
    place_of,
    read_objects,
)
from epochal.connectors.sink_modes import EXACTLY_ONCE, Mode, check_delivery, described, taken_by_folder
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
    check_flag,
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
    names_rise: bool = False,
    **options: Any,
) -> SourceDefinition:
    """Read a file, the matches of a glob or the files of a folder, including later files, oldest first.

    - ``schema``: Spark DDL; required for JSON and CSV.
    - ``max_files``: maximum number of files per epoch.
    - ``bounded``: read only the files that exist when the run starts, then end.
    - ``punctuation``: pattern of file names, such as ``*.end``. Epochs end only at files whose names match it.
    - ``recursive``: read every subfolder; folder names do not become columns. By default the source reads only
      subfolders named ``key=value``, and the key is a column if ``schema`` declares it. A folder whose files are all in
      other subfolders is an error.
    - ``missing``: handling of a file that is missing after it was listed and before an epoch reads it. ``"fail"`` fails
      the attempt; ``"skip"`` records the file in the epoch's slice and skips it.
    - ``malformed``: handling of a record that does not fit the schema. ``"fail"`` fails the epoch; ``"drop"`` drops
      the record and logs the number of dropped records.
    - ``names_rise``: on object stores, each file appears after all files with lesser names. Listings then begin after
      the last name that was read, except the first one of an attempt, which also finds files that appeared late.
    - ``options``: Spark's options for the format (``header``, ``sep``, ``multiLine``, ``timestampFormat``, ..); on
      object stores also credentials, such as ``access_key_id``.

    Raises ``OptionError``.
    """
    place, spark_options = place_of("files.source", path, options)
    reader = _reader("files.source", path, format, schema, malformed, recursive, spark_options, place)
    taking = Taking.checked("files.source", max_files, bounded, punctuation, missing)
    check_flag("files.source", "names_rise", names_rise)
    if place is not None:
        return object_source(place, path, reader, taking, names_rise)
    if names_rise:
        raise OptionError("files.source: names_rise applies to object stores only. Remove it.")
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
    """Read all files that exist when an attempt starts, as a static table for joins. Arguments as in :func:`source`.

    ``refresh``: interval in epoch time after which the next epoch lists the files again, such as ``"1 hour"``.
    """
    place, spark_options = place_of("files.table", path, options)
    reader = _reader("files.table", path, format, schema, malformed, recursive, spark_options, place)
    described_place = {} if place is None else place.address.described
    return TableDefinition(
        kind="files",
        read=partial(_read_table, path, reader) if place is None else partial(read_objects, place, reader),
        description={"path": path, "format": format, **reader.described, **described_place},
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
    """Write each epoch's rows to a subfolder ``epoch=N/``, which appears atomically. Delivery is exactly once.

    The folder must belong to this application alone, on a file system that the driver and the executors share. Spark
    reads it with ``spark.read.parquet(path)``, which adds the column ``epoch``. On object stores, a list of each
    epoch's files appears atomically: readers read the files that :func:`committed_files` returns.

    - ``mode``: ``append`` accepts append-only streams; ``updates`` also accepts streams whose rows replace earlier rows
      (such as the result of ``aggregate``), and an epoch's folder then holds the rows that changed in the epoch.
    - ``delivery``: only ``exactly_once``.
    - ``options``: credentials of an object store, as in :func:`source`.
    """
    place, others = place_of("files.sink", path, options)
    check_options("files.sink", others, ("mode", "delivery", *(STORE_OPTIONS if place is not None else ())))
    check_delivery("files.sink", delivery, EXACTLY_ONCE, "an epoch's rows appear together, or not at all")
    check_choice("files.sink", "format", format, FORMATS)
    return SinkDefinition(
        kind="files",
        make=partial(_backend, path, format) if place is None else partial(object_backend, place, format),
        description={
            "path": path,
            "format": format,
            **described(mode),
            **({} if place is None else place.address.described),
        },
        takes=taken_by_folder("files.sink", mode),
    )


def committed_files(path: str, **options: Any) -> list[str]:
    """URLs of the files that a sink on an object store has committed, by epoch, for any reader of files::

        spark.read.option("basePath", f"{path}/_data").parquet(*files.committed_files(path))

    ``options``: credentials, as in :func:`sink`. Raises ``OptionError`` and ``SourceError``.
    """
    place, others = place_of("files.committed_files", path, options)
    check_options("files.committed_files", others, STORE_OPTIONS)
    if place is None:
        raise OptionError(f"files.committed_files: {path!r} is not on an object store. Read the folder itself.")
    from epochal.connectors.object_files import committed_files

    return committed_files(place)


class FilesSource(Source):
    """File source. A slice lists files with size and modification time; a position is the number of files taken."""

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
        """The total size in bytes of uncompressed text files, as a row of text has at least one byte."""
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
        """The longest prefix of the files within the limit (at least one file), and its row count if known."""
        exact = self._reader.format == "parquet"
        if limits.max_records is None and not exact:
            return list(new), None
        rows_of = _parquet_rows if exact else _text_rows
        chosen, total = first_within(limits.max_records, new, rows_of)
        return chosen, total if exact else None


def read_schema(location: str, reader: Reader, spark: SparkSession) -> StructType:
    """The declared schema, or the schema of the newest Parquet file. Raises ``SchemaError`` and ``SourceError``."""
    from pyspark.errors import PySparkException

    if reader.schema is not None:
        return declared_schema(location, reader.schema)
    files = list_first(location, reader.recursive)
    if not files:
        raise SourceError(
            f"There is no file at {location} to infer the columns from. Add one, or set schema='column type, ..'."
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
    place: ObjectLocation | None,
) -> Reader:
    if not path.strip():
        raise OptionError(f"{what} needs a path: a file, a folder or a glob such as 'data/*.json'.")
    check_location(what, path)
    others = ["path", "format", "schema", "malformed", "recursive"]
    if place is not None:
        others += STORE_OPTIONS
        check_spark_options(what, options)
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
            f"{record.path} is not a complete Parquet file: {error}. Move it away, or rewrite it under a new name."
        ) from error


def _text_rows(record: FileRecord) -> int:
    import fsspec

    with fsspec.open(record.path, "rb") as file:
        return estimated_rows(record.path, record.size, file.read(_SAMPLE))
