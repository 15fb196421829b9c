"""Reading of recorded files with Spark, and handling of records that do not fit the schema.

A malformed record either fails the epoch, with a message that names the file and shows the record, or is dropped and
counted. The check covers every column, not only those that the pipeline uses. Otherwise Spark would skip unused
columns, and the same file would be malformed for one pipeline and valid for another.
"""

from __future__ import annotations

import codecs
import glob
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Literal

from epochal.connectors.csv_headers import CsvHeaders, Layout, Names, file_pieces
from epochal.connectors.file_partitions import PartitionColumns, Partitioning, Place
from epochal.connectors.file_records import (
    KEEP_MALFORMED,
    MALFORMED,
    Fitting,
    JsonRecords,
    Malformed,
    ReadLines,
    line_schema,
    text_option,
    text_options,
    with_malformed,
)
from epochal.connectors.text_lines import LineFormat
from epochal.errors import OptionError, SchemaError
from epochal.pipeline.definitions import check_choice, check_flag, check_options
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["json", "csv", "parquet"]

FORMATS: tuple[Format, ...] = ("json", "csv", "parquet")
_TEXT_OPTIONS = frozenset(
    {"multiLine", "timestampFormat", "timestampNTZFormat", "dateFormat", "timeZone", "encoding", "lineSep", "locale"}
)
_JSON_OPTIONS = frozenset(
    {"allowComments", "allowSingleQuotes", "allowUnquotedFieldNames", "allowNonNumericNumbers", "primitivesAsString"}
)
_CSV_OPTIONS = frozenset({"header", "sep", "quote", "escape", "comment", "nullValue", "emptyValue", "nanValue"})
_CSV_SPACE = frozenset({"ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "maxColumns", "maxCharsPerColumn"})
OPTIONS: dict[Format, frozenset[str]] = {
    "json": _TEXT_OPTIONS | _JSON_OPTIONS,
    "csv": _TEXT_OPTIONS | _CSV_OPTIONS | _CSV_SPACE,
    "parquet": frozenset({"mergeSchema"}),
}
"""Spark's reader options that a source may set. The source itself sets those for malformed records."""


@dataclass(frozen=True)
class Reader:
    """Options with which a source or table reads files. ``schema`` ``None``: the schema of the files (Parquet only)."""

    format: Format
    schema: str | None
    malformed: Malformed
    options: Mapping[str, Any]
    recursive: bool = False

    @property
    def multi_line(self) -> bool:
        """True if records may span several lines (option ``multiLine``)."""
        return text_option(self.options.get("multiLine", False)) == "true"

    @property
    def is_lines(self) -> bool:
        """True if the files are JSON with one object per line."""
        return self.format == "json" and not self.multi_line

    @property
    def has_header(self) -> bool:
        """True if the files are CSV and begin with a header."""
        return self.format == "csv" and text_option(self.options.get("header", False)) == "true"

    @property
    def described(self) -> dict[str, Any]:
        """The reader's part of a description, without format and path."""
        return {"recursive": True} if self.recursive else {}

    @property
    def declared(self) -> list[str]:
        """The declared columns that can be keys of partition folders."""
        return [] if self.schema is None or self.recursive else declared_schema("the files", self.schema).names

    def infer(self, spark: SparkSession, paths: Sequence[str]) -> StructType:
        """The schema stored in the files."""
        return spark.read.format(self.format).options(**self.options).load(list(map(_for_spark, paths))).schema


@dataclass(frozen=True, eq=False)
class Frames:
    """DataFrames of files with the columns ``schema``, read by ``reader`` in one session.

    ``partitioning`` selects the folders whose values are columns. Objects that do not depend on the files are created
    once, as every column and every option costs calls into the JVM.
    """

    reader: Reader
    spark: SparkSession
    schema: StructType
    partitioning: Partitioning
    _frames: dict[FileGroup, _FramesOfGroup] = field(default_factory=dict)

    def of(self, paths: Sequence[str], dropped: Observation | None = None) -> DataFrame:
        """The records of ``paths`` that fit the schema. ``dropped`` counts the others, as ``rows``."""
        if not paths:
            return self.spark.createDataFrame([], self.schema)
        groups = self._groups(paths)
        if len(groups) > 1:
            return self._of_groups(groups, dropped)
        (group, of_group), *_ = groups.items()
        frame = self._of(group).records(of_group)
        if self.reader.format == "parquet":
            return frame
        return self._fitting.kept(frame, dropped).drop(*self._file)

    def _groups(self, paths: Sequence[str]) -> dict[FileGroup, list[str]]:
        places = self.partitioning.places(paths)
        if not self.reader.has_header:
            return {FileGroup(place): of_place for place, of_place in places.items()}
        groups = groups_by_header(self._headers.of(self.spark, paths), places, self.schema)
        return groups or {FileGroup(place): of_place for place, of_place in places.items()}  # files without rows

    @cached_property
    def _headers(self) -> CsvHeaders:
        return CsvHeaders(self.reader.options, file_pieces, is_remote=lambda path: "://" in path)

    def _of_groups(self, groups: Mapping[FileGroup, list[str]], dropped: Observation | None) -> DataFrame:
        frames = [self._of(group).records(paths, with_file=True) for group, paths in groups.items()]
        united = reduce(type(frames[0]).unionAll, frames)
        if self.reader.format == "parquet":
            return united.drop("_file")
        return self._fitting_of_file.kept(united, dropped).drop("_file")

    def _of(self, group: FileGroup) -> _FramesOfGroup:
        if group not in self._frames:
            columns = PartitionColumns.of(self.schema, group.place)
            self._frames[group] = _FramesOfGroup(self.reader, self.spark, columns, group)
        return self._frames[group]

    @property
    def _file(self) -> tuple[str, ...]:
        return ("_file",) if self.reader.is_lines else ()

    @cached_property
    def _fitting(self) -> Fitting:
        import pyspark.sql.functions as F

        return self._fitting_of_file if self._file else self._fitting_by(F.input_file_name())

    @cached_property
    def _fitting_of_file(self) -> Fitting:
        import pyspark.sql.functions as F

        return self._fitting_by(F.col("_file"))

    def _fitting_by(self, file: Column) -> Fitting:
        return Fitting.of(self.schema, self.reader.malformed, file)


@dataclass(frozen=True)
class FileGroup:
    """Files that one scan reads: their folders have the same keys, and their headers the same columns in one order.

    ``layout`` ``None``: the files have the declared columns in the declared order.
    """

    place: Place
    layout: Layout | None = None


def groups_by_header(
    headers: Mapping[str, Names], places: Mapping[Place, Sequence[str]], schema: StructType
) -> dict[FileGroup, list[str]]:
    """Group the files that have a header. Raises ``SchemaError`` for a header without a declared column."""
    groups: dict[FileGroup, list[str]] = {}
    layouts: dict[tuple[Place, Names], Layout] = {}
    for place, paths in places.items():
        columns = PartitionColumns.of(schema, place)
        declared, keys = columns.files.names, [*columns.keys.values(), *place.keys]
        for path in paths:
            names = headers.get(path)
            if names is None:
                continue
            layout = layouts.get((place, names))
            if layout is None:
                layout = layouts[place, names] = Layout.of(path, names, declared, keys)
            groups.setdefault(FileGroup(place, None if layout.is_as_declared else layout), []).append(path)
    return groups


@dataclass(frozen=True, eq=False)
class _FramesOfGroup:
    """DataFrames of the files of one group."""

    reader: Reader
    spark: SparkSession
    columns: PartitionColumns
    group: FileGroup

    def records(self, paths: Sequence[str], with_file: bool = False) -> DataFrame:
        """The declared columns and, for text formats, ``_malformed`` with the records that do not fit.

        JSON lines also have ``_file``; with ``with_file``, all formats do.
        """
        import pyspark.sql.functions as F

        malformed = () if self.reader.format == "parquet" else (MALFORMED,)
        if self.reader.is_lines:
            frame, others = self._json_records.records(self._lines(paths)), ("_file", *malformed)
        else:
            frame, others = self._loading.load(list(map(_for_spark, paths))), malformed
            if self.group.layout is not None:
                kept = [*self.columns.files.names, *self.columns.texts.names, *malformed]
                frame = frame.select(*map(quoted, kept))
        if self.columns.keys:  # a column costs calls into the JVM
            file = F.col("_file") if self.reader.is_lines else F.input_file_name()
            frame = self.columns.typed(frame, file, others)
        if not with_file:
            return frame
        with_name = frame if self.reader.is_lines else frame.withColumn("_file", F.input_file_name())
        return self._in_order(with_name, ("_file", *malformed))

    def _in_order(self, frame: DataFrame, others: Sequence[str]) -> DataFrame:
        return frame.select(*map(quoted, [*self.columns.schema.names, *others]))

    @cached_property
    def _loading(self) -> DataFrameReader:
        reading = self._partitioned(self.spark.read.format(self.reader.format).options(**self.reader.options))
        files, layout = self.columns.files, self.group.layout
        if layout is not None:  # without pruning, Spark checks all values of a row
            files, reading = layout.schema(files), reading.option("columnPruning", "false")
        if self.reader.format == "parquet":
            return reading.schema(self._with_texts(files))
        return reading.schema(self._with_texts(with_malformed(files))).options(**KEEP_MALFORMED)

    def _partitioned(self, reading: DataFrameReader) -> DataFrameReader:
        """Set ``basePath``, below which Spark reads the values of folders."""
        return reading.option("basePath", _as_url(self.group.place.base)) if self.columns.keys else reading

    def _with_texts(self, schema: StructType) -> StructType:
        return type(schema)([*schema.fields, *self.columns.texts.fields])

    @cached_property
    def _json_records(self) -> JsonRecords:
        return JsonRecords.of(self.columns.files, text_options(self.reader.options), self.columns.texts.names)

    def _lines(self, paths: Sequence[str]) -> DataFrame:
        """The lines of text files, as ``_file`` and ``_line``, and the folders' values. Skips blank lines."""
        format = LineFormat.of(self.reader.format, self.reader.options)
        if codecs.lookup(format.encoding).name != "utf-8":  # Spark's text reader supports UTF-8 only
            tasks = self.spark.range(0, len(paths), 1, len(paths))
            texts = self.columns.texts
            return tasks.mapInArrow(
                ReadLines(tuple(paths), format, self.group.place.keys, tuple(texts.names)),
                self._with_texts(line_schema()),
            )
        columns, is_not_blank = self._line
        return self._text.load(list(map(_for_spark, paths))).select(*columns).where(is_not_blank)

    @cached_property
    def _text(self) -> DataFrameReader:
        from pyspark.sql.types import StringType, StructType

        separator = LineFormat.of(self.reader.format, self.reader.options).separator
        reading = self.spark.read.format("text").options(**({"lineSep": separator} if separator else {}))
        if not self.columns.keys:
            return reading
        return self._partitioned(reading).schema(self._with_texts(StructType().add("value", StringType())))

    @cached_property
    def _line(self) -> tuple[list[Column], Column]:
        """The columns of a line, and the condition that it is not blank."""
        import pyspark.sql.functions as F

        line = F.ltrim("value", F.lit(codecs.BOM_UTF8.decode())).alias("_line")
        texts = [F.col(quoted(name)) for name in self.columns.texts.names]
        return [F.input_file_name().alias("_file"), line, *texts], F.trim("_line", F.lit(" \t\r\n")) != ""


def checked_reader(
    what: str,
    format: Format,
    schema: str | None,
    malformed: Malformed,
    options: Mapping[str, Any],
    others: Collection[str],
    without: Collection[str] = (),
    recursive: bool = False,
) -> Reader:
    """Create a reader from the arguments of ``what`` (such as ``files.source``). Raises ``OptionError``.

    Accepts only ``options`` of the format. ``others`` are further option names for the error message; ``without`` are
    Spark options that ``what`` does not support.
    """
    check_flag(what, "recursive", recursive)
    check_choice(what, "format", format, FORMATS)
    check_choice(what, "malformed", malformed, ("fail", "drop"))
    check_options(what, options, {*(OPTIONS[format] - set(without)), *others})
    if schema is None and format != "parquet":
        raise OptionError(f"{what} needs a schema to read {format}: schema='origin string, delay int'.")
    return Reader(format=format, schema=schema, malformed=malformed, options=options, recursive=recursive)


def declared_schema(of: str, schema: str) -> StructType:
    """Parse a schema in DDL. Raises ``SchemaError``, with ``of`` as the schema's owner in the message."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(schema)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise SchemaError(f"The schema of {of} cannot be read: {schema!r}. {reason}") from error
    if not isinstance(found, StructType):
        raise SchemaError(f"The schema of {of} is {schema!r}: write 'column type, ..'.")
    check_distinct(f"The schema of {of}", found.names)
    return found


def check_distinct(what: str, names: Iterable[str]) -> None:
    """Raise ``SchemaError`` for two names that are equal or differ only by case, as references would be ambiguous."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other is not name:
            raise SchemaError(
                f"{what} has the columns {other!r} and {name!r}; names that are equal or differ only by case are "
                "ambiguous. Rename one."
            )


def estimated_rows(path: str, size: int, sample: bytes) -> int:
    """Estimate the number of lines of a text file of ``size`` bytes from ``sample``, its beginning."""
    lines = sample.count(b"\n")
    if size <= len(sample):
        return lines + (0 if sample.endswith(b"\n") or not sample else 1)
    return max(1, round(lines * size / len(sample)))


def _for_spark(path: str) -> str:
    """Escape a path, as Spark interprets paths as patterns."""
    literal = re.sub(r"([\\{}\[\]*?])", r"\\\1", path) if glob.has_magic(path) or re.search(r"[\\{}]", path) else path
    return _as_url(literal)


def _as_url(path: str) -> str:
    return path if "://" in path else f"file://{path}"
