"""Reading recorded files with Spark, and what happens to records that do not fit the schema.

A malformed record either fails the epoch, with a message that names the file and shows the record, or is dropped and
counted. Every column takes part in the decision, whichever columns the pipeline uses: Spark would otherwise not look at
columns that nobody reads, and the same file would be malformed for one pipeline and not for another.
"""

from __future__ import annotations

import codecs
import glob
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import fsspec
import pyarrow as pa

from epochal.connectors import json_objects
from epochal.connectors.text_lines import PIECE_BYTES, LineFormat
from epochal.errors import MalformedRecord, OptionError, SchemaError
from epochal.pipeline.options import check_choice, check_options
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["json", "csv", "parquet"]
Malformed = Literal["fail", "drop"]

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
"""Spark's reader options that a source may set. Those that decide about malformed records are the source's own."""

_MALFORMED = "_malformed"
LINES = pa.schema([("_file", pa.string()), ("_line", pa.string())])
LINES_DDL = "_file string, _line string"
KEEP_MALFORMED = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
"""Spark's options for :func:`with_malformed`."""
_SHOWN = 200


@dataclass(frozen=True)
class Reader:
    """How a source or table reads its files. ``schema`` is ``None`` only for Parquet: the files' own."""

    format: Format
    schema: str | None
    malformed: Malformed
    options: Mapping[str, Any]

    @property
    def multi_line(self) -> bool:
        """Whether a file is one JSON value, and not one object a line."""
        return text_option(self.options.get("multiLine", False)) == "true"

    def infer(self, spark: SparkSession, paths: Sequence[str]) -> StructType:
        """The schema that the files themselves carry."""
        return spark.read.format(self.format).options(**self.options).load(list(map(_for_spark, paths))).schema


@dataclass(frozen=True, eq=False)
class Frames:
    """What ``reader`` makes of files with the columns ``schema``, in one session.

    What is the same for any files is made once, as every column and every option costs calls into the JVM.
    """

    reader: Reader
    spark: SparkSession
    schema: StructType

    def of(self, paths: Sequence[str], dropped: Observation | None = None) -> DataFrame:
        """The records of ``paths`` that fit the schema; ``dropped`` then learns how many did not, as ``rows``."""
        if not paths:
            return self.spark.createDataFrame([], self.schema)
        if self.reader.format == "json" and not self.reader.multi_line:
            records = self._json_records.records(self._lines(paths))
            return self._fitting.kept(records, dropped).drop("_file")
        frame = self._loading.load(list(map(_for_spark, paths)))
        return frame if self.reader.format == "parquet" else self._fitting.kept(frame, dropped)

    @cached_property
    def _loading(self) -> DataFrameReader:
        reading = self.spark.read.format(self.reader.format).options(**self.reader.options)
        if self.reader.format == "parquet":
            return reading.schema(self.schema)
        return reading.schema(with_malformed(self.schema)).options(**KEEP_MALFORMED)

    @cached_property
    def _fitting(self) -> Fitting:
        import pyspark.sql.functions as F

        lines = self.reader.format == "json" and not self.reader.multi_line
        return Fitting.of(self.schema, self.reader.malformed, F.col("_file") if lines else F.input_file_name())

    @cached_property
    def _json_records(self) -> JsonRecords:
        return JsonRecords.of(self.schema, text_options(self.reader.options))

    def _lines(self, paths: Sequence[str]) -> DataFrame:
        """The lines of text files, as ``_file`` and ``_line``; blank lines are none."""
        format = LineFormat.of(self.reader.format, self.reader.options)
        if codecs.lookup(format.encoding).name != "utf-8":  # which Spark's reader of lines takes every file for
            tasks = self.spark.range(0, len(paths), 1, len(paths))
            return tasks.mapInArrow(ReadLines(tuple(paths), format), LINES_DDL)
        columns, is_not_blank = self._line
        return self._text.load(list(map(_for_spark, paths))).select(*columns).where(is_not_blank)

    @cached_property
    def _text(self) -> DataFrameReader:
        separator = LineFormat.of(self.reader.format, self.reader.options).separator
        return self.spark.read.format("text").options(**({"lineSep": separator} if separator else {}))

    @cached_property
    def _line(self) -> tuple[list[Column], Column]:
        """The columns of a line, and whether it is one."""
        import pyspark.sql.functions as F

        line = F.ltrim("value", F.lit(codecs.BOM_UTF8.decode())).alias("_line")
        return [F.input_file_name().alias("_file"), line], F.trim("_line", F.lit(" \t\r\n")) != ""


def checked_reader(
    what: str,
    format: Format,
    schema: str | None,
    malformed: Malformed,
    options: Mapping[str, Any],
    others: Collection[str],
    without: Collection[str] = (),
) -> Reader:
    """A reader from what an author gives ``what`` (``files.source``); ``options`` beyond the format's are refused.

    ``others`` are named among the options to choose from; ``without`` are Spark's that ``what`` does not have. Raises
    ``OptionError``.
    """
    check_choice(what, "format", format, FORMATS)
    check_choice(what, "malformed", malformed, ("fail", "drop"))
    check_options(what, options, {*(OPTIONS[format] - set(without)), *others})
    if schema is None and format != "parquet":
        raise OptionError(f"{what} needs a schema to read {format}: schema='origin string, delay int'.")
    return Reader(format=format, schema=schema, malformed=malformed, options=options)


def declared_schema(of: str, schema: str) -> StructType:
    """A schema written as DDL. Raises ``SchemaError`` saying what it is the schema ``of``."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(schema)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise SchemaError(f"The schema of {of} cannot be read: {schema!r}. {reason}") from error
    if not isinstance(found, StructType):
        raise SchemaError(f"The schema of {of} is {schema!r}: write 'column type, ..'.")
    return found


def with_malformed(schema: StructType) -> StructType:
    """The schema with the column into which Spark puts a record that does not fit it (:data:`KEEP_MALFORMED`)."""
    return type(schema)([*schema.fields]).add(_MALFORMED, "string")


@dataclass(frozen=True)
class ReadLines:
    """A task: the lines of its files, as ``_file`` and ``_line``."""

    paths: Sequence[str]
    format: LineFormat

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with fsspec.open(self.paths[number], "rb") as file:
                    for lines in self.format.lines(iter(lambda: file.read(PIECE_BYTES), b"")):
                        path = pa.repeat(self.paths[number], len(lines))
                        yield pa.RecordBatch.from_arrays([path, lines], schema=LINES)


@dataclass(frozen=True, eq=False)
class JsonRecords:
    """Lines (``_file``, ``_line``) of one JSON object each, parsed; ``parsed`` and ``found`` are the columns of the two
    steps, for any number of frames."""

    parsed: list[Column]
    found: list[Column]

    @classmethod
    def of(cls, schema: StructType, options: Mapping[str, str]) -> JsonRecords:
        import pyspark.sql.functions as F

        file, line, parsed = F.col("_file"), F.col("_line"), F.col("_parsed")
        # The row's number keeps Spark from parsing twice: it moves no filter past a column that is not deterministic.
        number = F.monotonically_increasing_id().alias("_number")
        fields = [json_objects.record(parsed)[name].alias(name) for name in schema.names]
        fits = json_objects.fits(parsed, line, options) & F.is_valid_utf8(line)
        malformed = F.when(~fits, F.make_valid_utf8(line)).alias(_MALFORMED)
        own = json_objects.parsed(line, schema, options).alias("_parsed")
        return cls([file, line, own, number], [file, *fields, malformed])

    def records(self, lines: DataFrame) -> DataFrame:
        """``_file`` and the columns of :func:`with_malformed`."""
        return lines.select(*self.parsed).where("_number >= 0").select(*self.found)


def text_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Of a source's options those that say how a line is parsed, as Spark's functions take them."""
    of_lines = ("encoding", "lineSep", "header", "comment", "multiLine")  # see LineFormat
    return {name: text_option(value) for name, value in options.items() if name not in of_lines}


def text_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, eq=False)
class Fitting:
    """Which records fit their schema, of frames with the columns of :func:`with_malformed` and others.

    ``counted``: how many do not; ``fits``: of a record, whether it does, or an error.
    """

    counted: Column
    fits: Column

    @classmethod
    def of(cls, schema: StructType, malformed: Malformed, file: Column) -> Fitting:
        """``file`` names a record's file to people."""
        import pyspark.sql.functions as F

        record = F.col(_MALFORMED)
        everything = F.to_json(F.struct(*(F.col(quoted(name)) for name in schema.names)))
        if malformed == "fail":
            verdict = F.raise_error(_complaint(file, record, everything)).cast("boolean")
        else:
            verdict = everything.isNull() & F.lit(False)
        return cls(
            F.count_if(record.isNotNull() & everything.isNotNull()).alias("rows"),
            F.when(record.isNotNull(), verdict).otherwise(F.lit(True)),
        )

    def kept(self, frame: DataFrame, dropped: Observation | None) -> DataFrame:
        """The records that fit; ``dropped`` learns how many did not, as ``rows``."""
        observed = frame if dropped is None else frame.observe(dropped, self.counted)
        return observed.where(self.fits).drop(_MALFORMED)


def _complaint(file: Column, record: Column, everything: Column) -> Column:
    """The failure as the engine reads it from the text of Spark's exception: one line of JSON."""
    import pyspark.sql.functions as F

    from epochal.tasks.reporting import MARKER

    message = F.concat(
        F.lit("A record of "),
        file,
        F.lit(" does not fit the declared schema: "),
        F.substring(F.coalesce(record, everything, F.lit("")), 1, _SHOWN),
        F.lit(" . Correct the file (as a new file) or the schema, or read with malformed='drop'."),
    )
    failure = F.to_json(F.struct(F.lit(MalformedRecord.slug).alias("type"), message.alias("message")))
    return F.concat(F.lit(MARKER), failure)


def estimated_rows(path: str, size: int, sample: bytes) -> int:
    """How many lines a text file of ``size`` bytes has, from the lines of its beginning."""
    lines = sample.count(b"\n")
    if size <= len(sample):
        return lines + (0 if sample.endswith(b"\n") or not sample else 1)
    return max(1, round(lines * size / len(sample)))


def _for_spark(path: str) -> str:
    """A path that Spark takes literally: it reads paths as patterns."""
    literal = re.sub(r"([\\{}\[\]*?])", r"\\\1", path) if glob.has_magic(path) or re.search(r"[\\{}]", path) else path
    return literal if "://" in literal else f"file://{literal}"
