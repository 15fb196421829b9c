"""CSV with a header: columns are matched by name in each file, in any order."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal.connectors import files
from epochal.connectors.csv_headers import Dialect, file_pieces
from epochal.connectors.files import FilesSource
from epochal.contracts.source import SliceLimits
from epochal.engine.failures import failure_of
from epochal.errors import SchemaError, SourceError

SCHEMA = "id int, name string, amount decimal(10,2)"


def source(path: Path, schema: str = SCHEMA, **options: Any) -> FilesSource:
    made = files.source(str(path), "csv", schema, header=True, **options).make()
    assert isinstance(made, FilesSource)
    return made


def read(spark: SparkSession, path: Path, schema: str = SCHEMA, **options: Any) -> list[tuple[Any, ...]]:
    made = source(path, schema, **options)
    slice = made.plan(SliceLimits(None))
    assert slice is not None
    return sorted(map(tuple, made.read(spark, slice).collect()), key=repr)


def write(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    dialect = {"quoting": csv.QUOTE_NONNUMERIC, "doublequote": False, "escapechar": "\\", "lineterminator": "\n"}
    csv.writer(text, **dialect).writerows(rows)  # type: ignore[arg-type]
    data = text.getvalue().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(COMPRESSED.get(path.suffix, lambda plain: plain)(data))


def _in_two_members(data: bytes) -> bytes:
    return gzip.compress(data[:5]) + gzip.compress(data[5:])


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": _in_two_members,
    ".bz2": bz2.compress,
    ".deflate": zlib.compress,
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}
NAMES = ["plain", "with, separator", 'with "quotation" marks', "über", "line\nbreak"]


@pytest.mark.parametrize("multi_line", [False, True])
def test_files_with_random_column_orders_are_read_unchanged(
    spark: SparkSession, tmp_path: Path, multi_line: bool
) -> None:
    """The written rows are the expected result. Each file has its own order, extension, additional columns and case
    of letters."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    others = NAMES if multi_line else NAMES[:-1]
    expected = []
    for number, suffix in enumerate(["", ".gz", ".bz2", ".deflate", ".zst", ""]):
        rows = [(number * 10 + n, draw.choice(others), draw.randrange(-999, 999)) for n in range(draw.randrange(3))]
        expected += [(str(id), name, str(amount)) for id, name, amount in rows]
        extra = draw.sample(others, draw.randrange(len(others)))
        order = draw.sample(["id", "name", "amount", *extra, *[""] * draw.randrange(3)], k=3 + len(extra))
        order += [column for column in ("id", "name", "amount") if column not in order]
        header = [draw.choice([str.upper, str.lower, str.title])(name) if name in SCHEMA else name for name in order]
        values = [{"id": id, "name": name, "amount": amount} for id, name, amount in rows]
        written = [header, *([row.get(column, "x") for column in order] for row in values)]
        write(tmp_path / f"in/{number}.csv{suffix}", written)
    schema = "id string, name string, amount string"
    options = {"multiLine": True} if multi_line else {}
    assert read(spark, tmp_path / "in", schema, **options) == sorted(expected, key=repr), seed
    table = files.table(str(tmp_path / "in"), "csv", schema, header=True, **options).read(spark)
    assert sorted(map(tuple, table.collect()), key=repr) == sorted(expected, key=repr), seed


def test_each_epoch_has_the_columns_of_its_own_files(spark: SparkSession, tmp_path: Path) -> None:
    """Also files of a partition folder that have a column with its name. A value has the type of its own column."""
    made = source(tmp_path, "day int, b int, a int")
    write(tmp_path / "one.csv", [["a", "b", "day"], [1, 2, 3]])
    write(tmp_path / "day=7/two.csv", [["b", "day", "a"], [4, "no number", 5]])
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "blank.csv").write_bytes(b"\n  \n")
    write(tmp_path / "header-only.csv", [["b", "a", "day"]])
    slice = made.plan(SliceLimits(None))
    assert slice is not None
    assert sorted(map(tuple, made.read(spark, slice).collect())) == [(3, 2, 1), (7, 4, 5)]
    made.accept(slice)
    write(tmp_path / "day=8/three.csv", [["a", "b"], [6, 7]])
    slice = made.plan(SliceLimits(None))
    assert slice is not None
    assert [tuple(row) for row in made.read(spark, slice).collect()] == [(8, 7, 6)]
    made.accept(slice)
    (tmp_path / "empty-2.csv").write_bytes(b"")
    slice = made.plan(SliceLimits(None))
    assert slice is not None
    assert made.read(spark, slice).collect() == []


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("\ufeffb,a\n1,2\n", {}, [(2, 1)]),
        ("\ufeffb,a\n1,2\n", {"multiLine": True}, [(2, 1)]),
        ("\"b\"|'a'\r\n1|2\r\n", {"sep": "|", "quote": "'", "nullValue": "a", "schema": 'a int, `"b"` int'}, [(2, 1)]),
        ("# by hand\n\n#b,a\nb,a\n1,2\n", {"comment": "#"}, [(2, 1)]),
        ("# by, hand\n\nb,a\n1,2\n", {"comment": "#", "multiLine": True}, [(2, 1)]),
        (" b , a \n 1 , 2 \n", {"ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}, [(2, 1)]),
        (",b,a,,\nx,1,2,,\n", {}, [(2, 1)]),
        ("b\ta\n1\t2\n", {"sep": "\\t"}, [(2, 1)]),
        ("b||x,y||a\n1||0||2\n", {"sep": "||"}, [(2, 1)]),
        ('"x ""y"" z",b,a\n0,1,2\n', {"escape": '"'}, [(2, 1)]),
        ('"x ""y""\n, z",b,a\n0,1,2\n', {"escape": '"', "multiLine": True}, [(2, 1)]),
        ('"x\\"\r\n,",b,a\r\n0,1,2\r\n', {"multiLine": True}, [(2, 1)]),
        ("b,a|1,2|", {"lineSep": "|"}, [(2, 1)]),
        ("b,a,b2,B2\n1,2,3,4\n", {}, [(2, 1)]),
    ],
)
def test_headers_are_parsed_as_in_spark(
    spark: SparkSession, tmp_path: Path, text: str, options: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    assert read(spark, tmp_path, **{"schema": "a int, b int", **options}) == expected


def test_encoding_of_two_bytes_per_character_is_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("b,ä\n1,2\n".encode("utf-16le"))
    assert read(spark, tmp_path, "`ä` int, b int", encoding="utf-16le", lineSep="\n") == [(2, 1)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("b,c\n1,2\n", ["a.csv", "does not have the declared column 'a'", "'b', 'c'", "Declare the columns"]),
        ("x\n", ["columns 'a', 'b'"]),
        (" a, b\n1,2\n", ["ignoreLeadingWhiteSpace=True"]),
        ("a,b,A\n1,2,3\n", ["a.csv", "'a' 2 times ('a', 'A'"]),
        ('a,"b\nc",b\n1,2,3\n', ["a.csv", "a quotation mark does not end", "multiLine=True"]),
    ],
)
def test_a_header_without_a_declared_column_is_refused(
    spark: SparkSession, tmp_path: Path, text: str, parts: list[str]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    for malformed in ("fail", "drop"):
        with pytest.raises(SchemaError) as caught:
            read(spark, tmp_path, "a int, b int", malformed=malformed)
        for part in parts:
            assert part in caught.value.message
    with pytest.raises(SchemaError):
        files.table(str(tmp_path), "csv", "a int, b int", header=True).read(spark)


def test_a_row_with_too_few_or_too_many_values_is_malformed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("b,x,a\n1,0,2\n1,2\n1,0,2,3\nno,0,2\n")
    assert read(spark, tmp_path, "a int, b int", malformed="drop") == [(2, 1)]
    with pytest.raises(Exception, match="malformed-record") as caught:
        read(spark, tmp_path, "a int, b int")
    assert "a.csv" in failure_of(caught.value).message


def test_files_whose_header_cannot_be_read_are_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(SourceError, match=r"The header of .*a\.csv\.gz cannot be read"):
        read(spark, tmp_path, "a int, b int")
    (tmp_path / "a.csv.gz").rename(tmp_path / "a.csv.lz4")
    with pytest.raises(SourceError, match=r"extension \.lz4 .*header=False"):
        read(spark, tmp_path, "a int, b int")


@pytest.mark.parametrize("multi_line", [False, True])
def test_reading_a_header_reads_no_more_of_the_file(tmp_path: Path, multi_line: bool) -> None:
    taken = []

    def pieces() -> Any:
        for piece in (b"\n\n", b'a,"b', b'",c', b"\r", b"\n1,2,3\n", b"4,5,6\n"):
            taken.append(piece)
            yield piece

    assert Dialect.of({"multiLine": multi_line}).header("a.csv", pieces()) == 'a,"b",c'
    assert taken[-1] in (b"\r", b"\n1,2,3\n")
    (tmp_path / "big.csv").write_bytes(b"x" * 5 * 2**20)
    with pytest.raises(SourceError, match="does not end within 4 MiB"):
        Dialect.of({"multiLine": multi_line}).header("big.csv", file_pieces(str(tmp_path / "big.csv")))
