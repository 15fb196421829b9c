"""HDFS as source and table, on a real NameNode and DataNode: slices, changed files, malformed records."""

from __future__ import annotations

import io
import json
import posixpath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hdfs import InsecureClient

from epochal.connectors import hdfs
from epochal.connectors.hdfs.growing_folder import HdfsSource
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.failures import failure_of
from epochal.errors import FilesMissing, SchemaError, SliceOutdated, SourceChanged, SourceError
from epochal.testing.servers.hdfs import HdfsServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]

SCHEMA = "k string, n int"
UNLIMITED = SliceLimits(None)


class Folder:
    """A folder of HDFS with files of chosen modification times."""

    def __init__(self, server: HdfsServer) -> None:
        self.server = server
        self.path = server.create_folder()
        self.client = InsecureClient(server.url, user=server.user)

    def put(self, name: str, *records: object, at: int | None = None, overwrite: bool = False) -> str:
        """Write a file of lines, modified at second ``at``. Records that are not text become JSON."""
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in records)
        return self.put_bytes(name, text.encode(), at, overwrite)

    def put_bytes(self, name: str, data: bytes, at: int | None = None, overwrite: bool = False) -> str:
        path = f"{self.path}/{name}"
        self.client.write(path, data=data, overwrite=overwrite)
        if at is not None:
            self.client.set_times(path, modification_time=at * 1000)
        return path

    def source(self, pattern: str = "", **options: Any) -> HdfsSource:
        given = {"format": "json", "schema": SCHEMA, "user": self.server.user, **options}
        path = posixpath.join(self.path, pattern).rstrip("/")
        source = hdfs.source(self.server.url, path, **given).make()
        assert isinstance(source, HdfsSource)
        return source


@pytest.fixture
def folder(hdfs_server: HdfsServer) -> Folder:
    return Folder(hdfs_server)


def planned(source: HdfsSource, limit: int | None = None) -> Slice:
    slice = source.plan(SliceLimits(limit))
    assert slice is not None
    return Slice.model_validate_json(slice.model_dump_json())


def names(slice: Slice) -> list[str]:
    return [posixpath.basename(record["path"]) for record in slice.detail["files"]]


def test_growing_folder_is_read_in_the_order_of_modification_times(spark: SparkSession, folder: Folder) -> None:
    folder.put("b.json", {"k": "b", "n": 1}, at=100)
    folder.put("a.json", {"k": "a", "n": 2}, "", {"k": "é漢", "n": None}, at=200)
    for hidden in ("_hidden.json", ".part", "c.json._COPYING_", "deeper/c.json"):
        folder.put(hidden, "nonsense", at=50)
    source = folder.source()
    first = planned(source)
    assert names(first) == ["b.json", "a.json"]
    assert (first.start, first.end) == ({"files": 0}, {"files": 2})
    assert sorted(map(tuple, source.read(spark, first).collect())) == [("a", 2), ("b", 1), ("é漢", None)]
    assert planned(source) == first  # not accepted yet
    source.accept(first)
    assert source.plan(UNLIMITED) is None
    folder.put("late.json", {"k": "c", "n": 3}, at=10)  # older, but not yet read
    assert names(planned(source)) == ["late.json"]
    restored = folder.source()
    restored.restore(source.checkpoint(), [])
    assert planned(restored) == planned(source)


def test_bounded_source_ends_with_the_files_present_at_its_start(spark: SparkSession, folder: Folder) -> None:
    folder.put("b.json", {"k": "b", "n": 1}, at=100)
    folder.put("a.json", {"k": "a", "n": 2}, at=200)
    source = folder.source(bounded=True, max_files=1)
    source.limit_to_bounds()
    folder.put("early.json", {"k": "c", "n": 3}, at=50)
    folder.put("late.json", {"k": "d", "n": 4}, at=300)
    taken = []
    while not source.ended:
        if (slice := source.plan(UNLIMITED)) is not None:
            source.accept(slice)
            taken += [tuple(row) for row in source.read(spark, slice).collect()]
    assert (taken, source.bounded) == ([("b", 1), ("a", 2)], True)
    endless = folder.source()
    endless.restore(source.checkpoint(), [])
    endless.limit_to_bounds()
    last = planned(endless)
    endless.accept(last)
    assert names(last) == ["early.json", "late.json"]
    assert (endless.plan(UNLIMITED), endless.ended, endless.bounded) == (None, False, False)


def test_bounded_source_of_an_empty_folder_ends_immediately(folder: Folder) -> None:
    folder.put("_hidden.json", "nonsense")
    source = folder.source(bounded=True)
    source.limit_to_bounds()
    folder.put("late.json", {"k": "a", "n": 1})
    assert (source.plan(UNLIMITED), source.ended) == (None, True)


def test_slices_end_at_files_that_match_the_punctuation(folder: Folder) -> None:
    for second, name in enumerate(("a.json", "b.json", "1.end.json", "c.json"), 100):
        folder.put(name, {"k": name, "n": second}, at=second)
    source = folder.source(punctuation="*.end.json")
    first = planned(source, limit=1)
    assert (source.punctuated, names(first)) == (True, ["a.json", "b.json", "1.end.json"])
    source.accept(first)
    assert source.plan(UNLIMITED) is None
    bounded = folder.source(punctuation="*.end.json", bounded=True)
    bounded.limit_to_bounds()
    bounded.accept(first)
    assert names(planned(bounded)) == ["c.json"]


def test_patterns_match_files_in_daily_folders(spark: SparkSession, folder: Folder) -> None:
    folder.put("2013-01-01/a.json", {"k": "a", "n": 1})
    folder.put("2013-01-02/b.json", {"k": "b", "n": 2})
    folder.put("2013-01-02/c.txt", "nonsense")
    folder.put("_staging/d.json", "nonsense")
    source = folder.source("2013-*/*.json")
    assert sorted(map(tuple, source.read(spark, planned(source)).collect())) == [("a", 1), ("b", 2)]
    one = folder.source("2013-01-01/a.json")
    assert one.read(spark, planned(one)).collect() == [("a", 1)]
    assert folder.source("none-*/*.json").plan(UNLIMITED) is None


def test_file_changed_after_its_slice_is_an_error(spark: SparkSession, folder: Folder) -> None:
    path = folder.put("a.json", {"k": "a", "n": 1}, at=100)
    source = folder.source()
    slice = planned(source)
    folder.put("a.json", {"k": "a", "n": 1}, {"k": "a", "n": 2}, at=100, overwrite=True)
    with pytest.raises(SourceChanged, match=r"a\.json has \d+ bytes instead of"):
        source.read(spark, slice)
    folder.put("a.json", {"k": "b", "n": 1}, at=101, overwrite=True)
    with pytest.raises(SourceChanged, match="was rewritten"):
        source.read(spark, slice)
    source.accept(slice)
    with pytest.raises(SourceChanged, match="was rewritten"):
        source.plan(UNLIMITED)
    folder.client.delete(path)
    with pytest.raises(SourceChanged, match="is missing"):
        source.read(spark, slice)
    assert source.plan(UNLIMITED) is None  # processed files may be deleted


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_file_changed_before_executors_read_it_is_an_error(spark: SparkSession, folder: Folder, format: str) -> None:
    """The file changes after the driver's check; the executors check it again."""
    first, second = ({"k": "a", "n": 1}, {"k": "b", "n": 2})

    def data(row: dict[str, object]) -> bytes:
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pa.Table.from_pylist([row], pa.schema([("k", "string"), ("n", "int32")])), sink)
        return sink.getvalue() if format == "parquet" else json.dumps(row).encode()

    folder.put_bytes("a", data(first), at=100)
    source = folder.source(format=format)
    frame = source.read(spark, planned(source))
    folder.put_bytes("a", data(second), at=101, overwrite=True)
    with pytest.raises(Exception, match=r"was rewritten.* since its slice was recorded") as caught:
        frame.collect()
    assert failure_of(caught.value).type == "source-changed"


def test_slices_respect_the_record_limit(spark: SparkSession, folder: Folder) -> None:
    for number in range(4):
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pa.table({"N": list(range(100)), "x": [1.5] * 100}), sink)
        folder.put_bytes(f"exact/{number}.parquet", sink.getvalue(), at=number + 1)
        folder.put(f"text/{number}.json", *[{"k": "key", "n": row} for row in range(10_000)], at=number + 1)
    exact = folder.source("exact", format="parquet", schema="n bigint, missing string")
    slice = planned(exact, 250)
    assert (len(names(slice)), slice.rows) == (2, 200)
    rows = exact.read(spark, slice).collect()
    assert sorted(row.n for row in rows) == sorted([*range(100)] * 2)
    assert {row.missing for row in rows} == {None}
    assert planned(exact, 10).rows == 100  # at least one file
    assert len(names(planned(folder.source("text", max_files=3), 25_000))) == 2
    assert folder.source("exact", format="parquet", schema=None).schema(spark).simpleString() == (
        "struct<N:bigint,x:double>"
    )


@pytest.mark.long  # test_hdfs_faults.py covers streaming
def test_large_file_is_read_completely(spark: SparkSession, folder: Folder) -> None:
    """The file is larger than a read block, so lines are joined across blocks."""
    lines = [f'{{"k": "{"x" * 90}{number:09}", "n": {number}}}' for number in range(200_000)]
    folder.put_bytes("a.json", "\r\n".join(lines).encode())
    source = folder.source()
    found = source.read(spark, planned(source)).selectExpr("count(*)", "sum(n)", "count(distinct k)").collect()
    assert tuple(found[0]) == (200_000, sum(range(200_000)), 200_000)


@pytest.mark.parametrize("column", [["k", "n"], ["k"], []])
def test_malformed_record_fails_the_epoch_and_names_its_file(
    spark: SparkSession, folder: Folder, column: list[str]
) -> None:
    folder.put("good.json", {"k": "a", "n": 1})
    folder.put("bad.json", {"k": "a", "n": 1}, {"k": 'qu"ote', "n": "many"})
    source = folder.source()
    frame = source.read(spark, planned(source))
    with pytest.raises(Exception) as caught:  # Spark's exception, as the engine receives it
        (frame.select(*column) if column else frame.groupBy().count()).collect()
    failure = failure_of(caught.value)
    assert failure.type == "malformed-record"
    assert f"{folder.path}/bad.json does not fit" in failure.message
    assert "many" in failure.message


def test_malformed_records_are_dropped(spark: SparkSession, folder: Folder) -> None:
    folder.put_bytes("a.json", b'{"k":"a","n":1}\nnonsense\n{"k":"b","n":"x"}\n{"k":"\xff","n":2}\n')
    source = folder.source(malformed="drop")
    assert sorted(map(tuple, source.read(spark, planned(source)).collect())) == [("a", 1), ("�", 2)]


def test_csv_files_are_read_with_their_options(spark: SparkSession, folder: Folder) -> None:
    folder.put("a.csv", "# made by hand", "k;n", "x;1", "#;9", '"a;b";2', ";3", at=1)
    folder.put("b.csv", "N;other;k", "4;x;y", at=2)
    source = folder.source(format="csv", header=True, sep=";", comment="#")
    rows = source.read(spark, planned(source)).collect()
    assert sorted(map(tuple, rows), key=str) == sorted([("x", 1), ("a;b", 2), (None, 3), ("y", 4)], key=str)
    folder.put("c.csv", "k;n", "x;one")
    with pytest.raises(Exception, match="malformed-record"):
        source.read(spark, planned(source)).collect()


def test_other_encodings_and_line_separators_are_read(spark: SparkSession, folder: Folder) -> None:
    folder.put_bytes("a.csv", "é,1|b,2|".encode("utf-16"))
    source = folder.source(format="csv", encoding="utf-16", lineSep="|")
    assert sorted(map(tuple, source.read(spark, planned(source)).collect())) == [("b", 2), ("é", 1)]


def test_invalid_parquet_files_and_types_are_reported(spark: SparkSession, folder: Folder) -> None:
    folder.put("none/a.parquet", "nonsense")
    with pytest.raises(SourceError, match=r"a\.parquet is not a complete Parquet file"):
        folder.source("none", format="parquet", schema=None).schema(spark)
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"k": ["a"], "n": ["many"]}), sink)
    folder.put_bytes("other/a.parquet", sink.getvalue())
    source = folder.source("other", format="parquet")
    with pytest.raises(Exception) as caught:
        source.read(spark, planned(source)).collect()
    assert "Column 'n'" in failure_of(caught.value).message
    assert failure_of(caught.value).type == "invalid-schema"


def test_table_is_read_completely(spark: SparkSession, folder: Folder) -> None:
    folder.put("a.json", {"k": "a", "n": 1})
    folder.put("b.json", {"k": "b", "n": 2})
    table = hdfs.table(folder.server.url, folder.path, format="json", schema=SCHEMA, user=folder.server.user)
    assert sorted(map(tuple, table.read(spark).collect())) == [("a", 1), ("b", 2)]


def test_missing_files_and_permissions_are_reported(spark: SparkSession, folder: Folder) -> None:
    for pattern in ("none", "none/*.json"):
        with pytest.raises(SourceError, match=f"There is no file or folder {folder.path}/none in HDFS. Create it"):
            folder.source(pattern).plan(UNLIMITED)
    with pytest.raises(SourceError, match=r"to infer the columns from\. Add one, or set schema="):
        folder.source(format="parquet", schema=None).schema(spark)
    with pytest.raises(SchemaError, match="k strin"):
        folder.source(schema="k strin").schema(spark)
    folder.put("a.json", {"k": "a", "n": 1})
    folder.client.set_permission(folder.path, "700")
    with pytest.raises(SourceError, match=r"Permission denied: user=alice.*Grant the user this permission"):
        folder.source(user="alice").plan(UNLIMITED)


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_subfolders_are_read_like_those_of_local_files(spark: SparkSession, folder: Folder, format: str) -> None:
    """Partition folders with and without declared columns, files at several depths, and recursive reading."""

    def put(name: str, n: int) -> None:
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pa.table({"n": pa.array([n], pa.int32())}), sink)
        text = {"json": json.dumps({"n": n}), "csv": str(n)}
        folder.put_bytes(name, sink.getvalue() if format == "parquet" else text[format].encode())

    put("day=2026-05-01/place=a%3Ab é/a", 1)
    inner, of_inner = ("place=x/", "x") if format == "csv" else ("", "None")  # CSV columns are matched by position
    put(f"day=2026-05-02/{inner}b", 2)
    put("day=__HIVE_DEFAULT_PARTITION__/_staging/c", 9)
    put("other/d", 3)

    def read(schema: str, **options: Any) -> list[tuple[object, ...]]:
        source = folder.source(format=format, schema=schema, **options)
        return sorted(tuple(map(str, row)) for row in source.read(spark, planned(source)).collect())

    assert read("day date, n int, place string") == [("2026-05-01", "1", "a:b é"), ("2026-05-02", "2", of_inner)]
    assert read("n int") == [("1",), ("2",)]
    assert read("n int", recursive=True) == [("1",), ("2",), ("3",)]
    with pytest.raises(Exception, match="not of the declared type int") as caught:
        read("day int, n int")
    assert failure_of(caught.value).type == "source-error"
    for name in ("day=2026-05-01", "day=2026-05-02"):
        folder.client.delete(f"{folder.path}/{name}", recursive=True)
    with pytest.raises(SourceError, match=r"only in subfolders .*/other/d\. Read every subfolder with recursive=True"):
        folder.source(format=format).plan(UNLIMITED)


def test_deleted_file_fails_or_is_recorded_as_skipped(spark: SparkSession, folder: Folder) -> None:
    folder.put("a.json", {"k": "a", "n": 1}, at=100)
    path = folder.put("b.json", {"k": "b", "n": 2}, at=200)
    failing, skipping = folder.source(max_files=1), folder.source(missing="skip")
    failing.accept(planned(failing))
    both = planned(skipping)
    folder.client.delete(path)
    with pytest.raises(FilesMissing, match=r"b\.json: listed by the source.*missing='skip'"):
        failing.plan(UNLIMITED)
    with pytest.raises(SliceOutdated, match=r"b\.json"):
        skipping.read(spark, both)
    assert isinstance(skipping.unreadable(both), SliceOutdated)
    slice = planned(skipping)
    assert (names(slice), [record["path"] for record in slice.detail["missing"]]) == (["a.json"], [path])


def test_parquet_columns_require_compatible_types_and_unique_names(spark: SparkSession, folder: Folder) -> None:
    sink = io.BytesIO()
    table = pa.table({"n": pa.array([1], pa.int32()), "t": ["12"], "Twice": [1], "tWICE": [2]})
    pyarrow.parquet.write_table(table, sink)
    folder.put_bytes("a.parquet", sink.getvalue())

    def read(schema: str | None) -> list[tuple[object, ...]]:
        source = folder.source(format="parquet", schema=schema)
        return [tuple(row) for row in source.read(spark, planned(source)).collect()]

    assert read("N bigint, T string") == [(1, "12")]
    for schema in ("t int", "n string", "n smallint", "n boolean", "t date"):
        with pytest.raises(Exception, match="cannot be read as") as caught:
            read(schema)
        assert failure_of(caught.value).type == "invalid-schema"
    with pytest.raises(Exception, match="'Twice' and 'tWICE', which differ only by case"):
        read("twice bigint")
    with pytest.raises(SchemaError, match="'Twice' and 'tWICE'"):
        folder.source(format="parquet", schema=None).schema(spark)
