"""Headers of CSV files: mapping of declared columns to positions in a file, by name.

Spark reads the columns of a CSV file by position, even with ``header=True``, and only logs a warning if a header
differs. The driver therefore reads the first record of each file, and Spark reads each file with the columns in its
header. Spark parses the headers too, so that names are interpreted identically.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from epochal.connectors.decompression import ERRORS, compression_of, decompressed
from epochal.connectors.file_records import MALFORMED, text_option, text_options
from epochal.errors import SchemaError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_FIRST_BYTES = 16 * 1024
_LONGEST_HEADER = 4 * 1024 * 1024
_REQUESTS: Final = 16
"""Maximum number of headers read concurrently from a remote file system."""
_CACHED_HEADERS: Final = 1_000
_SHOWN_NAMES = 20
_END: Final = "end of the header"
_SPACE = "".join(map(chr, range(33)))
"""Characters that Java's ``trim`` removes."""
_MARK = "\ufeff"
_UNESCAPED = {"\\t": "\t", "\\r": "\r", "\\b": "\b", "\\f": "\f", '\\"': '"', "\\'": "'", "\\\\": "\\"}

Names = tuple[str | None, ...]
"""The names in a header, in order; ``None`` for a column without a name."""


@dataclass(frozen=True)
class Layout:
    """The columns of a file in order, with distinct names. ``declared`` lists the declared ones."""

    columns: tuple[str, ...]
    declared: tuple[str, ...]

    @classmethod
    def of(cls, path: str, names: Names, declared: Sequence[str], keys: Iterable[str] = ()) -> Layout:
        """Find the ``declared`` columns among ``names``. ``keys`` are names of columns that are not in the file.

        Raises ``SchemaError`` for a declared column that is missing from the header, or occurs twice.
        """
        positions: dict[str, list[int]] = {}
        for position, name in enumerate(names):
            if name is not None:
                positions.setdefault(name.casefold(), []).append(position)
        found = {column: positions.get(column.casefold(), []) for column in declared}
        missing = [column for column, places in found.items() if not places]
        if missing:
            raise _missing(path, missing, names)
        for column, places in found.items():
            if len(places) > 1:
                raise SchemaError(
                    f"The header of {path} has column {column!r} {len(places)} times "
                    f"({', '.join(repr(names[place]) for place in places)}; case does not count), which is "
                    "ambiguous. Write the file again under another name, with distinct names of columns."
                )
        columns = {places[0]: column for column, places in found.items()}
        used = {name.casefold() for name in (*declared, *keys, MALFORMED)}
        return cls(tuple(_distinct(columns, used, names)), tuple(declared))

    @property
    def is_as_declared(self) -> bool:
        return self.columns == self.declared

    def schema(self, declared: StructType) -> StructType:
        """The schema of the file: declared columns with their types, the others as text."""
        from pyspark.sql.types import StringType, StructField

        fields = {each.name: each for each in declared.fields}
        return type(declared)([fields.get(name, StructField(name, StringType())) for name in self.columns])


def _distinct(columns: Mapping[int, str], used: set[str], names: Names) -> Iterator[str]:
    for position, name in enumerate(names):
        if position in columns:
            yield columns[position]
            continue
        own = name if name and name.casefold() not in used else f"_column_{position}"
        while own.casefold() in used:
            own += "_"
        used.add(own.casefold())
        yield own


def _missing(path: str, missing: Sequence[str], names: Names) -> SchemaError:
    shown = ", ".join("''" if name is None else repr(name) for name in names[:_SHOWN_NAMES])
    others = f" and {len(names) - _SHOWN_NAMES} others" if len(names) > _SHOWN_NAMES else ""
    trimmed = {name.strip().casefold() for name in names if name is not None}
    spaces = all(column.casefold() in trimmed for column in missing)
    remedy = (
        "Its names have spaces around them: read with ignoreLeadingWhiteSpace=True and ignoreTrailingWhiteSpace=True."
        if spaces
        else "Declare the columns that the files have, or write the file again with these columns, under another name; "
        "files without a header are read with header=False, by position."
    )
    what = "column" if len(missing) == 1 else "columns"
    return SchemaError(
        f"The header of {path} does not have the declared {what} {', '.join(map(repr, missing))}; it has "
        f"{shown}{others}. {remedy}"
    )


@dataclass(frozen=True)
class Dialect:
    """Rules by which Spark finds the first record of a CSV file, from the options of a source."""

    encoding: str
    separator: str | None
    """Record separator; ``None``: any line break."""
    comment: str | None
    multi_line: bool
    delimiter: str
    quote: str
    escape: str

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Dialect:
        delimiter = str(options.get("sep", ","))
        return cls(
            encoding=str(options.get("encoding", "utf-8")),
            separator=options.get("lineSep"),
            comment=options.get("comment") or None,
            multi_line=text_option(options.get("multiLine", False)) == "true",
            delimiter=_UNESCAPED.get(delimiter, delimiter),
            quote=str(options.get("quote", '"')),
            escape=str(options.get("escape", "\\")),
        )

    def header(self, path: str, pieces: Iterable[bytes]) -> str | None:
        """The text of the first record; ``None`` if the file has none. Reads only as many ``pieces`` as necessary."""
        decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        text = ""
        for piece in pieces:
            text = (text + decoder.decode(piece)).removeprefix(_MARK)
            found = self._first(text)
            if found is not None:
                return found
            if len(text) > _LONGEST_HEADER:
                raise SourceError(
                    f"The header of {path} does not end within {_LONGEST_HEADER // 2**20} MiB. Correct the option that "
                    "ends it (lineSep, quote), or the file."
                )
        return self._first(text + decoder.decode(b"", final=True), whole=True)

    def _first(self, text: str, whole: bool = False) -> str | None:
        position = 0
        while position < len(text):
            match = self._record.match(text, position)
            if match is None:
                return text[position:] if whole else None  # an unterminated quotation
            if not match["end"] and not whole:
                return None
            record = match["record"]
            blank = not record if self.multi_line else not record.strip(_SPACE)
            if not blank and not (self.comment and record.startswith(self.comment)):
                return record
            position = match.end()
        return None

    @cached_property
    def _record(self) -> re.Pattern[str]:
        end = re.escape(self.separator) if self.separator else r"\r\n|\r|\n"
        if not self.multi_line:
            return re.compile(rf"(?P<record>(?:(?!{end}).)*+)(?P<end>{end}|\Z)", re.DOTALL)
        delimiter, quote, escape = map(re.escape, (self.delimiter, self.quote, self.escape))
        rest = rf"(?:(?!{delimiter}|{end}).)*+"
        value = rest
        if quote:
            escaped = rf"{escape}." if escape and escape != quote else rf"{quote}{quote}"
            quoted = rf"[ \t]*+{quote}(?:{escaped}|(?!{quote}).)*+{quote}"
            value = rf"(?:{quoted}|(?![ \t]*+{quote})){rest}"
        record = rf"(?!{self._comment}){value}(?:{delimiter}{value})*+"
        comment = rf"(?={self._comment}.)(?:(?!{end}).)*+" if self.comment else r"(?!)"
        return re.compile(rf"(?P<record>{comment}|{record})(?P<end>{end}|\Z)", re.DOTALL)

    @property
    def _comment(self) -> str:
        return re.escape(self.comment) if self.comment else r"(?!)"


class Pieces(Protocol):
    """Reader of the uncompressed content of a file, in pieces."""

    def __call__(self, path: str) -> Iterator[bytes]: ...


@dataclass(frozen=True, eq=False)
class CsvHeaders:
    """The headers of the files that a source or table reads with ``options``."""

    options: Mapping[str, Any]
    pieces: Pieces
    is_remote: Callable[[str], bool]
    _parsed: dict[str, Names] = field(default_factory=dict)

    def of(self, spark: SparkSession, paths: Sequence[str]) -> dict[str, Names]:
        """The names in the header of each file. Omits files without a header, which have no rows.

        Raises ``SchemaError`` for a header that cannot be parsed, ``SourceError`` for a file that cannot be read.
        """
        texts = {path: text for path, text in zip(paths, self._texts(paths), strict=True) if text is not None}
        unknown = {text: path for path, text in texts.items() if text not in self._parsed}
        if unknown:
            if len(self._parsed) + len(unknown) > _CACHED_HEADERS:
                self._parsed.clear()
                unknown = {text: path for path, text in texts.items()}
            self._parsed.update(self._parse(spark, unknown))
        return {path: self._parsed[text] for path, text in texts.items()}

    def _texts(self, paths: Sequence[str]) -> list[str | None]:
        if len(paths) == 1 or not any(map(self.is_remote, paths)):
            return list(map(self._text, paths))
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="csv-headers") as pool:
            return list(pool.map(self._text, paths))

    def _text(self, path: str) -> str | None:
        try:
            return self._dialect.header(path, self.pieces(path))
        except ERRORS as error:
            raise SourceError(f"The header of {path} cannot be read: {error}. Check the file.") from error

    @cached_property
    def _dialect(self) -> Dialect:
        return Dialect.of(self.options)

    def _parse(self, spark: SparkSession, files: Mapping[str, str]) -> dict[str, Names]:
        """The names in each header text, a key of ``files``. Spark evaluates this in the driver, without a job."""
        import pyspark.sql.functions as F

        delimiter = self._dialect.delimiter
        width = 2 + max(text.count(delimiter) for text in files)
        ended = pa.table({"text": [f"{text}{delimiter}{_END}" for text in files]})
        columns = ", ".join(f"c{number} string" for number in range(width))
        options = {name: text for name, text in text_options(self.options).items() if not name.endswith("Value")}
        parsed = spark.createDataFrame(ended).select(F.from_csv("text", columns, options)).collect()
        return {text: _names(path, list(row[0] or ())) for (text, path), row in zip(files.items(), parsed, strict=True)}


def _names(path: str, values: list[str | None]) -> Names:
    while values and values[-1] is None:
        values.pop()
    if not values or values.pop() != _END:
        raise SchemaError(
            f"The header of {path} cannot be parsed: a quotation mark does not end. If a name has a line break, read "
            "with multiLine=True; otherwise correct the file, or the options quote and escape."
        )
    return tuple(None if value is None else re.sub(r"\r\n?", "\n", value) for value in values)


def file_pieces(path: str) -> Iterator[bytes]:
    """The content of a file, decompressed according to its extension, as in Spark. Raises ``SourceError``."""
    import fsspec

    suffix = compression_of(path)
    if suffix in ("lz4", "snappy"):
        raise SourceError(
            f"{path}: the header of a file with the extension .{suffix} cannot be read. Compress it as .gz, .bz2, "
            ".deflate or .zst; or write it without a header, and read with header=False."
        )
    with fsspec.open(path, "rb") as file:
        yield from decompressed(path, _growing(file.read))


def _growing(read: Callable[[int], bytes]) -> Iterator[bytes]:
    size = _FIRST_BYTES
    while piece := read(size):
        yield piece
        size = min(2 * size, _LONGEST_HEADER)
