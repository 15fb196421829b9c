"""Files as source, table and sink: JSON lines, CSV and Parquet.

``source`` follows a folder that grows. A new file must appear whole: write it under another name (``_x``, ``.x``, or in
another folder of the same file system) and rename it. A file that was taken must stay as it is; new data goes to new
files. Files are taken in the order of their modification times, those of one time by path.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.connectors.file_listing import FileRecord, absolute, current, list_files
from epochal.connectors.file_reading import FORMATS, OPTIONS, Format, Malformed, Reader, estimated_rows
from epochal.connectors.options import check_choice, check_options, check_positive
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.errors import OptionError, SchemaError, SourceChanged, SourceError
from epochal.pipeline.definitions import SinkDefinition, SourceDefinition, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

_SAMPLE = 64 * 1024
_log = logging.getLogger(__name__)


def source(
    path: str,
    format: Format = "parquet",
    schema: str | None = None,
    *,
    max_files: int | None = None,
    malformed: Malformed = "fail",
    **options: Any,
) -> SourceDefinition:
    """The records of a file, a glob or a folder's files, those that come later too, oldest file first.

    ``schema`` is Spark DDL, needed for JSON and CSV. ``max_files`` bounds an epoch's slice. A record that does not fit
    the schema fails the epoch, or is dropped and counted in the log (``malformed="drop"``). ``options`` are Spark's for
    the format (``header``, ``sep``, ``multiLine``, ``timestampFormat``, ..). Raises ``OptionError``.
    """
    reader = _reader("files.source", path, format, schema, malformed, options)
    check_positive("files.source", "max_files", max_files, whole=True)
    return SourceDefinition(
        kind="files",
        make=partial(FilesSource, path, reader, max_files),
        description={"path": path, "format": format, **({"max_files": max_files} if max_files else {})},
    )


def table(
    path: str, format: Format = "parquet", schema: str | None = None, *, malformed: Malformed = "fail", **options: Any
) -> TableDefinition:
    """All records that the files hold when an attempt starts, to join with. Arguments as :func:`source`."""
    reader = _reader("files.table", path, format, schema, malformed, options)
    return TableDefinition(
        kind="files", read=partial(_read_table, path, reader), description={"path": path, "format": format}
    )


def sink(path: str, format: Format = "parquet", **options: Any) -> SinkDefinition:
    """A folder in which an epoch's rows appear at once, as ``epoch=N/``. No row is missing or doubled, whatever fails.

    The folder is this application's own, on a file system that driver and executors share. Spark reads it with
    ``spark.read.parquet(path)`` and adds the column ``epoch``.
    """
    check_options("files.sink", options, ())
    check_choice("files.sink", "format", format, FORMATS)
    return SinkDefinition(
        kind="files", make=partial(_backend, path, format), description={"path": path, "format": format}
    )


class FilesSource(Source):
    """Slices are lists of files, each with size and modification time; positions count the files taken so far."""

    def __init__(self, path: str, reader: Reader, max_files: int | None = None) -> None:
        self._location = absolute(path)
        self._reader = reader
        self._max_files = max_files
        self._taken: dict[str, FileRecord] = {}
        self._schema: StructType | None = None
        self._dropped: dict[int, Observation] = {}

    @property
    def kind(self) -> str:
        return "files"

    @property
    def bounded(self) -> bool:
        return False

    def schema(self, spark: SparkSession) -> StructType:
        if self._schema is None:
            self._schema = read_schema(self._location, self._reader, spark)
        return self._schema

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        records = [FileRecord.from_json(record) for record in (checkpoint or {}).get("files", ())]
        self._taken = {record.path: record for record in records}
        for slice in slices:
            self.accept(slice)

    def checkpoint(self) -> dict[str, Any]:
        return {"files": [record.as_json() for record in self._taken.values()]}

    def plan(self, limits: SliceLimits) -> Slice | None:
        new: list[FileRecord] = []
        for record in list_files(self._location):
            taken = self._taken.get(record.path)
            if taken is None:
                new.append(record)
            elif taken != record:
                raise _changed(taken, record)
        chosen, rows = self._within(limits, new[: self._max_files])
        if not chosen:
            return None
        return Slice(
            start={"files": len(self._taken)},
            end={"files": len(self._taken) + len(chosen)},
            detail={"files": [record.as_json() for record in chosen]},
            rows=rows,
        )

    def accept(self, slice: Slice) -> None:
        for record in _records(slice):
            self._taken[record.path] = record

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        records = _records(slice)
        for record in records:
            now = current(record.path)
            if now != record:
                raise _changed(record, now)
        dropped = None
        if self._reader.malformed == "drop" and self._reader.format != "parquet":
            from pyspark.sql import Observation

            dropped = self._dropped[slice.start["files"]] = Observation()
        return self._reader.frame(spark, self.schema(spark), [record.path for record in records], dropped)

    def acknowledge(self, slice: Slice) -> None:
        observation = self._dropped.pop(slice.start["files"], None)
        if observation is not None:
            # Spark's answer is there once the job has run; a slice that nothing read has none, and must not hold E6 up.
            threading.Thread(target=_log_dropped, args=(self._location, slice, observation), daemon=True).start()

    def _within(self, limits: SliceLimits, new: Sequence[FileRecord]) -> tuple[list[FileRecord], int | None]:
        """The first files that together keep to the limit, at least one; and their rows, where these are known."""
        exact = self._reader.format == "parquet"
        if limits.max_records is None and not exact:
            return list(new), None
        chosen: list[FileRecord] = []
        total = 0
        for record in new:
            rows = _parquet_rows(record.path) if exact else _text_rows(record)
            if chosen and limits.max_records is not None and total + rows > limits.max_records:
                break
            chosen.append(record)
            total += rows
        return chosen, total if exact else None


def read_schema(location: str, reader: Reader, spark: SparkSession) -> StructType:
    """The declared schema, or that of the newest Parquet file. Raises ``SchemaError``, ``SourceError`` with the fix."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if reader.schema is not None:
        try:
            schema = StructType.fromDDL(reader.schema)
        except PySparkException as error:
            raise SchemaError(f"The schema of {location} cannot be read: {reader.schema!r}. {_short(error)}") from error
        if not isinstance(schema, StructType):
            raise SchemaError(f"The schema of {location} is {reader.schema!r}: write 'column type, ..'.")
        return schema
    files = list_files(location)
    if not files:
        raise SourceError(
            f"There is no file at {location} to learn the columns from. Add one, or give schema='column type, ..'."
        )
    return reader.infer(spark, [files[-1].path])


def _reader(
    what: str, path: str, format: Format, schema: str | None, malformed: Malformed, options: dict[str, Any]
) -> Reader:
    if not path.strip():
        raise OptionError(f"{what} needs a path: a file, a folder or a glob such as 'data/*.json'.")
    check_choice(what, "format", format, FORMATS)
    check_choice(what, "malformed", malformed, ("fail", "drop"))
    check_options(what, options, {*OPTIONS[format], "path", "format", "schema", "malformed"})
    if schema is None and format != "parquet":
        raise OptionError(f"{what} needs a schema to read {format}: schema='origin string, delay int'.")
    return Reader(format=format, schema=schema, malformed=malformed, options=options)


def _read_table(path: str, reader: Reader, spark: SparkSession) -> DataFrame:
    location = absolute(path)
    schema = read_schema(location, reader, spark)
    return reader.frame(spark, schema, [record.path for record in list_files(location)], None)


def _backend(path: str, format: str, place: SinkPlace) -> SinkBackend:
    from epochal.backends.files import FilesBackend

    return FilesBackend(path, format)


def _records(slice: Slice) -> list[FileRecord]:
    return [FileRecord.from_json(record) for record in slice.detail["files"]]


def _changed(recorded: FileRecord, now: FileRecord | None) -> SourceChanged:
    if now is None:
        what = "is missing"
    elif now.size != recorded.size:
        what = f"has {now.size} bytes instead of {recorded.size}"
    else:
        what = "was written again"
    return SourceChanged(
        f"{recorded.path} {what} since its slice was recorded. Put the recorded file back, with its modification time; "
        "new data belongs in a new file."
    )


def _parquet_rows(path: str) -> int:
    import fsspec
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with fsspec.open(path, "rb") as file:
            return int(pyarrow.parquet.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path} is not a whole Parquet file: {error}. Move it away, or write it again under a new name."
        ) from error


def _text_rows(record: FileRecord) -> int:
    import fsspec

    with fsspec.open(record.path, "rb") as file:
        return estimated_rows(record.path, record.size, file.read(_SAMPLE))


def _log_dropped(location: str, slice: Slice, observation: Observation) -> None:
    rows = observation.get.get("rows", 0)
    if rows:
        first = _records(slice)[0].path
        _log.warning("Dropped %d malformed records of %s, in the slice that begins with %s.", rows, location, first)


def _short(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
