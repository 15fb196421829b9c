"""Records of text files: lines, JSON objects parsed from lines, and the check against the declared schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import fsspec
import pyarrow as pa

from epochal.connectors import json_objects
from epochal.connectors.file_partitions import folder_texts
from epochal.connectors.text_lines import PIECE_BYTES, LineFormat
from epochal.errors import MalformedRecord
from epochal.state.type_names import quoted
from epochal.tasks.reporting import MARKER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import StructType

Malformed = Literal["fail", "drop"]

MALFORMED = "_malformed"
KEEP_MALFORMED = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
"""Spark's reader options for :func:`with_malformed`."""
_SHOWN = 200


def with_malformed(schema: StructType) -> StructType:
    """The schema with the column in which Spark stores records that do not fit (:data:`KEEP_MALFORMED`)."""
    return type(schema)([*schema.fields]).add(MALFORMED, "string")


def line_schema() -> StructType:
    """The schema of unparsed lines."""
    from pyspark.sql.types import StringType, StructType

    return StructType().add("_file", StringType()).add("_line", StringType())


def batch_of_lines(path: str, lines: pa.Array, texts: Mapping[str, str | None]) -> pa.RecordBatch:
    """A batch of lines of one file, with the values of its folders by name."""
    values = {name: pa.repeat(pa.scalar(value, pa.string()), len(lines)) for name, value in texts.items()}
    return pa.RecordBatch.from_pydict({"_file": pa.repeat(path, len(lines)), "_line": lines, **values})


@dataclass(frozen=True)
class ReadLines:
    """Task that reads the lines of its files, as ``_file`` and ``_line``, and folder values.

    ``texts`` selects the values among the folders' ``keys``.
    """

    paths: Sequence[str]
    format: LineFormat
    keys: tuple[str, ...]
    texts: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                path = self.paths[number]
                texts = folder_texts(path, self.keys, self.texts)
                with fsspec.open(path, "rb") as file:
                    for lines in self.format.lines(iter(lambda: file.read(PIECE_BYTES), b"")):
                        yield batch_of_lines(path, lines, texts)


@dataclass(frozen=True, eq=False)
class JsonRecords:
    """Parser of lines (``_file``, ``_line``) with one JSON object each.

    ``parsed`` and ``found`` are the columns of the two steps, reusable for any number of DataFrames.
    """

    parsed: list[Column]
    found: list[Column]

    @classmethod
    def of(cls, schema: StructType, options: Mapping[str, str], others: Sequence[str] = ()) -> JsonRecords:
        """Create the columns for ``schema``. ``others``: further columns of the lines, passed through unchanged."""
        import pyspark.sql.functions as F

        file, line, parsed = F.col("_file"), F.col("_line"), F.col("_parsed")
        # The row number prevents Spark from parsing twice: Spark moves no filter past a nondeterministic column.
        number = F.monotonically_increasing_id().alias("_number")
        fields = [json_objects.record(parsed)[name].alias(name) for name in schema.names]
        fits = json_objects.fits(parsed, line, options) & F.is_valid_utf8(line)
        malformed = F.when(~fits, F.make_valid_utf8(line)).alias(MALFORMED)
        own = json_objects.parsed(line, schema, options).alias("_parsed")
        kept = [F.col(quoted(name)) for name in others]
        return cls([file, line, own, number, *kept], [file, *fields, malformed, *kept])

    def records(self, lines: DataFrame) -> DataFrame:
        """Parse lines into ``_file`` and the columns of :func:`with_malformed`."""
        return lines.select(*self.parsed).where("_number >= 0").select(*self.found)


def text_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options for parsing a line among a source's options, in the form of Spark's functions."""
    of_lines = ("encoding", "lineSep", "header", "comment", "multiLine")  # see LineFormat
    return {name: text_option(value) for name, value in options.items() if name not in of_lines}


def text_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, eq=False)
class Fitting:
    """Check of records against their schema, for DataFrames with at least the columns of :func:`with_malformed`.

    ``counted`` is the number of records that do not fit. ``fits`` is the condition that a record fits; it may raise an
    error.
    """

    counted: Column
    fits: Column

    @classmethod
    def of(cls, schema: StructType, malformed: Malformed, file: Column) -> Fitting:
        """Create the check. ``file`` is the path of a record's file, for messages."""
        import pyspark.sql.functions as F

        record = F.col(MALFORMED)
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
        """The records that fit. ``dropped`` counts the others, as ``rows``."""
        observed = frame if dropped is None else frame.observe(dropped, self.counted)
        return observed.where(self.fits).drop(MALFORMED)


def _complaint(file: Column, record: Column, everything: Column) -> Column:
    """The failure as one line of JSON, which the engine parses from Spark's exception."""
    import pyspark.sql.functions as F

    message = F.concat(
        F.lit("A record of "),
        file,
        F.lit(" does not fit the declared schema: "),
        F.substring(F.coalesce(record, everything, F.lit("")), 1, _SHOWN),
        F.lit(" . Correct the file (as a new file) or the schema, or read with malformed='drop'."),
    )
    failure = F.to_json(F.struct(F.lit(MalformedRecord.slug).alias("type"), message.alias("message")))
    return F.concat(F.lit(MARKER), failure)
