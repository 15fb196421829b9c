"""Files on an object store as source and table, on a real S3 server, compared with Spark's reader of local files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import posixpath
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.connectors import files
from epochal.connectors.fetched_source import FetchedSource
from epochal.connectors.file_listing import list_files
from epochal.connectors.file_slices import records_of
from epochal.connectors.object_files import ObjectFiles
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.failures import failure_of
from epochal.errors import (
    EpochalError,
    FilesMissing,
    OptionError,
    SliceOutdated,
    SourceChanged,
    SourceError,
    SourceUnavailable,
)
from epochal.secrets import secret
from epochal.snapshots.object_store import ObjectStoreFiles
from epochal.testing.servers.s3 import S3Server, SeaweedServer
from epochal.testing.servers.s3_proxy import S3Proxy
from tests.servers.contract.s3_folder import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]

SCHEMA = "k string, n int"
UNLIMITED = SliceLimits(None)


class Folder:
    """The folder ``in`` of a bucket, and a local folder with the same files."""

    def __init__(self, server: S3Server, bucket: str, local: Path, endpoint: str | None = None) -> None:
        self.store = server.store(bucket)
        self.bucket = bucket
        self.local = local / "in"
        self.local.mkdir(exist_ok=True)
        self.options = options_of(server, local, endpoint)

    def url(self, pattern: str = "") -> str:
        return f"s3://{self.bucket}/in/{pattern}".rstrip("/")

    def put(self, name: str, *records: object) -> str:
        """Write a file of lines. Records that are not text become JSON."""
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in records)
        return self.put_bytes(name, text.encode())

    def put_bytes(self, name: str, data: bytes) -> str:
        obstore.put(self.store, f"in/{name}", data)
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return self.url(name)

    def delete(self, name: str) -> None:
        obstore.delete(self.store, f"in/{name}")

    def source(self, pattern: str = "", **options: Any) -> FetchedSource:
        given = {"format": "json", "schema": SCHEMA, **self.options, **options}
        source = files.source(self.url(pattern), **given).make()
        assert isinstance(source, FetchedSource)
        return source


@pytest.fixture
def folder(s3_server: SeaweedServer, bucket: str, tmp_path: Path) -> Folder:
    return Folder(s3_server, bucket, tmp_path)


def planned(source: FetchedSource, limit: int | None = None) -> Slice:
    slice = source.plan(SliceLimits(limit))
    assert slice is not None
    return Slice.model_validate_json(slice.model_dump_json())


def names(slice: Slice) -> list[str]:
    return [posixpath.basename(record["path"]) for record in slice.detail["files"]]


def test_growing_folder_is_read(spark: SparkSession, folder: Folder) -> None:
    folder.put("b.json", {"k": "b", "n": 1})
    folder.put("a.json", {"k": "a", "n": 2}, "", {"k": "é漢", "n": None})
    for hidden in ("_hidden.json", ".part", "c.json._COPYING_", "deeper/c.json"):
        folder.put(hidden, "nonsense")
    source = folder.source()
    first = planned(source)
    assert sorted(names(first)) == ["a.json", "b.json"]
    assert (first.start, first.end) == ({"files": 0}, {"files": 2})
    assert sorted(map(tuple, source.read(spark, first).collect())) == [("a", 2), ("b", 1), ("é漢", None)]
    assert planned(source) == first  # not accepted yet
    source.accept(first)
    assert source.plan(UNLIMITED) is None
    folder.put("late.json", {"k": "c", "n": 3})
    assert names(planned(source)) == ["late.json"]
    restored = folder.source()
    restored.restore(source.checkpoint(), [])
    assert planned(restored) == planned(source)


def test_files_are_found_as_in_a_local_folder(folder: Folder) -> None:
    """Special characters, hidden names, partition folders, patterns; a folder's mark of other programs is no file."""
    paths = [
        "a b é.json",
        "#h?.json",
        "a+b~.json",
        "[1].json",
        "{x}*.json",
        "1.json",
        "%41.json",
        "dt=1%3A2/x.json",
        "_dt=3/x.json",
        ".dt=4/x.json",
        "c/d.json",
        "c/dt=1/e.json",
        "c/_hidden/e.json",
        "c/d/e/f.csv",
        "[d]/x.json",
        "_hidden/x.json",
        "empty.json",
    ]
    for path in paths:
        folder.put(path, *([] if path.startswith("empty") else [path]))
    patterns = (
        "",
        "*",
        "*.json",
        "[1].json",
        "[d]",
        "[c-d]*",
        "c/*",
        "c/*/*.json",
        "c/**",
        "**/*.json",
        "c/d/**/*.csv",
    )
    for pattern in (*patterns, "1.json", "c", "dt=*", "*/x.json", "?.json", "**"):
        for recursive in (False, True):
            local = {
                os.path.relpath(record.path, folder.local)
                for record in list_files(str(folder.local / pattern).rstrip("/"), recursive)
            }
            there = {record.path.removeprefix(f"{folder.url()}/") for record in listing(folder, pattern, recursive)}
            assert there == local, (pattern, recursive)
    obstore.put(folder.store, "in/mark", b"")
    obstore.put(folder.store, "in/mark/x.json", b"{}")
    assert folder.url("mark") not in {record.path for record in listing(folder, "", True)}


def listing(folder: Folder, pattern: str, recursive: bool = False) -> list[Any]:
    source = folder.source(pattern)
    assert isinstance(source._files, ObjectFiles)
    return source._files.list_all(recursive)


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text("ab é漢\"'\\,;\t#", max_size=5),
    st.lists(st.integers(0, 5), max_size=2),
    st.fixed_dictionaries({"x": st.integers(0, 5)}),
)
JSON_LINE = st.one_of(
    st.dictionaries(st.sampled_from(["k", "n", "d", "N", "other"]), VALUES, max_size=4).map(
        lambda record: json.dumps(record, ensure_ascii=False)
    ),
    st.sampled_from(
        [
            "",
            "  ",
            "nonsense",
            '{"k": "a"',
            "[]",
            "null",
            "{'k': 'single'}",
            '{"k":1}{"k":2}',
            "\ufeff{}",
            "\x0b",
            "\x01",
        ]
    ),
)
FIELD = st.text("ab1. -é\"'\\#;\t", max_size=4)
CSV_LINE = st.one_of(
    st.lists(FIELD, min_size=1, max_size=4).map(",".join),
    st.sampled_from(["", " ", "\x01", "#x,1", '"a\nb",2', "1,2,3,4,5,6"]),
)
CSV_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "sep": st.sampled_from([",", ";", "\t"]),
        "quote": st.sampled_from(['"', "'"]),
        "escape": st.sampled_from(["\\", '"']),
        "comment": st.just("#"),
        "nullValue": st.sampled_from(["a", "-"]),
        "emptyValue": st.just("b"),
        "ignoreLeadingWhiteSpace": st.booleans(),
        "ignoreTrailingWhiteSpace": st.booleans(),
        "maxColumns": st.sampled_from([3, 100]),
    },
)
JSON_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "allowSingleQuotes": st.booleans(),
        "primitivesAsString": st.booleans(),
        "allowUnquotedFieldNames": st.booleans(),
    },
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".deflate": zlib.compress,
}
COLUMNS = "k string, n bigint, d double"


@pytest.mark.parametrize("format", ["json", "csv"])
@pytest.mark.parametrize("malformed", ["drop", "fail"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_text_files_have_the_same_rows_as_local_files(
    spark: SparkSession, folder: Folder, format: str, malformed: str, data: st.DataObject
) -> None:
    """Both readers give the same rows, or both fail."""
    lines = data.draw(st.lists(JSON_LINE if format == "json" else CSV_LINE, max_size=5))
    text = data.draw(ENDS).join(lines) + data.draw(st.sampled_from(["", "\n"]))
    options: dict[str, Any] = data.draw(JSON_OPTIONS if format == "json" else CSV_OPTIONS)
    suffix = data.draw(st.sampled_from(sorted(COMPRESSED)))
    name = f"{data.draw(st.uuids())}.txt{suffix}"
    folder.put_bytes(name, COMPRESSED[suffix](text.encode()))
    given: dict[str, Any] = {"format": format, "schema": COLUMNS, "malformed": malformed, **options}
    local = files.source(str(folder.local / name), **given).make()
    assert outcome(spark, folder.source(name, **given)) == outcome(spark, local)


def outcome(spark: SparkSession, source: Any) -> object:
    """The rows, or the type of the failure."""
    try:
        slice = source.plan(UNLIMITED)
        return sorted(map(str, source.read(spark, slice).collect()))
    except EpochalError as error:
        return type(error).slug
    except Exception as error:  # noqa: BLE001  Spark's
        return failure_of(error).type


def test_csv_files_with_headers_have_the_same_rows_as_local_files(spark: SparkSession, folder: Folder) -> None:
    folder.put_bytes("a.csv.gz", gzip.compress(b'\xef\xbb\xbfn;k\n1;x\n\n2;"a;b"\n'))
    folder.put("b.csv", "K;other;n", "y;0;3", ";;")
    folder.put("empty.csv")
    options: dict[str, Any] = {"format": "csv", "header": True, "sep": ";", "schema": SCHEMA}
    local = outcome(spark, files.source(str(folder.local), **options).make())
    assert outcome(spark, folder.source(**options)) == local
    assert isinstance(local, list) and len(local) == 4
    folder.put("c.csv", "k;m", "y;1")
    assert outcome(spark, folder.source(**options)) == "invalid-schema"


def test_parquet_files_have_the_same_rows_as_local_files(spark: SparkSession, folder: Folder) -> None:
    """Written by Spark with both forms of timestamps, and by Arrow; with the schema of the files and a declared one."""
    frame = spark.sql(
        "SELECT id, CAST(id AS int) i, CAST(id / 3 AS decimal(10, 4)) d, CAST(id AS string) s, array(id, NULL) a, "
        "map('x', id) m, named_struct('y', id, 'z', 'é') r, CAST('é' AS binary) bin, CAST(id AS float) f, "
        "timestamp'1969-12-31 23:59:59.123456' + make_dt_interval(id) t, date'1890-01-01' + CAST(id AS int) day, "
        "CAST(timestamp_seconds(id) AS timestamp_ntz) ntz, id % 2 = 0 b, IF(id > 5, NULL, CAST(id AS tinyint)) tiny "
        "FROM range(10)"
    )
    for number, form in enumerate(("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")):
        spark.conf.set("spark.sql.parquet.outputTimestampType", form)
        try:
            frame.coalesce(1).write.parquet(str(folder.local.parent / form))
        finally:
            spark.conf.unset("spark.sql.parquet.outputTimestampType")
        (path,) = (folder.local.parent / form).glob("*.parquet")
        folder.put_bytes(f"{number}.parquet", path.read_bytes())
        for declared in (None, "ID bigint, i bigint, t timestamp, s string, missing double, r struct<y: bigint>"):
            options: dict[str, Any] = {"format": "parquet", "schema": declared}
            local = files.source(str(folder.local / f"{number}.parquet"), **options).make()
            there = folder.source(f"{number}.parquet", **options)
            assert there.schema(spark).simpleString() == local.schema(spark).simpleString()
            rows = outcome(spark, local)
            assert outcome(spark, there) == rows
            assert isinstance(rows, list) and len(rows) == 10


def test_partition_folders_are_columns(spark: SparkSession, folder: Folder) -> None:
    folder.put("day=2026-05-01/place=a%3Ab é/a", {"n": 1})
    folder.put("day=2026-05-02/place=__HIVE_DEFAULT_PARTITION__/b", {"n": 2})
    folder.put("other/d", {"n": 3})
    source = folder.source(schema="day date, n int, place string")
    rows = sorted(tuple(map(str, row)) for row in source.read(spark, planned(source)).collect())
    assert rows == [("2026-05-01", "1", "a:b é"), ("2026-05-02", "2", "None")]
    for name in ("day=2026-05-01/place=a%3Ab é/a", "day=2026-05-02/place=__HIVE_DEFAULT_PARTITION__/b"):
        folder.delete(name)
    with pytest.raises(SourceError, match=r"only in subfolders .*/other/d\. Read every subfolder with recursive=True"):
        folder.source().plan(UNLIMITED)


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_file_changed_after_its_slice_is_an_error(spark: SparkSession, folder: Folder, format: str) -> None:
    """Tasks read exactly the version of the slice, also if size and second of modification are the same."""

    def data(row: dict[str, object]) -> bytes:
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pa.Table.from_pylist([row], pa.schema([("k", "string"), ("n", "int32")])), sink)
        return sink.getvalue() if format == "parquet" else json.dumps(row).encode()

    folder.put_bytes("a", data({"k": "a", "n": 1}))
    source = folder.source(format=format)
    slice = planned(source)
    folder.put_bytes("a", data({"k": "b", "n": 1}))
    with pytest.raises(Exception, match=r"was rewritten.* since its slice was recorded") as caught:
        source.read(spark, slice).collect()
    assert failure_of(caught.value).type == "source-changed"
    source.accept(slice)
    with pytest.raises(SourceChanged, match="since an epoch committed its rows"):
        source.plan(UNLIMITED)
    folder.delete("a")
    assert source.plan(UNLIMITED) is None  # processed files may be deleted


def test_deleted_file_fails_or_is_recorded_as_skipped(spark: SparkSession, folder: Folder) -> None:
    folder.put("a.json", {"k": "a", "n": 1})
    path = folder.put("b.json", {"k": "b", "n": 2})
    failing, skipping = folder.source(max_files=1), folder.source(missing="skip")
    failing.accept(planned(failing))
    both = planned(skipping)
    folder.delete("b.json")
    with pytest.raises(FilesMissing, match=r"b\.json: listed by the source.*missing='skip'"):
        failing.plan(UNLIMITED)
    with pytest.raises(Exception, match="is missing since its slice") as caught:
        skipping.read(spark, both).collect()
    assert failure_of(caught.value).type == "source-changed"
    assert isinstance(skipping.unreadable(both), SliceOutdated)
    slice = planned(skipping)
    assert (names(slice), [record["path"] for record in slice.detail["missing"]]) == (["a.json"], [path])


def test_rising_names_are_listed_from_the_last_name(
    s3_server: SeaweedServer, bucket: str, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    """Only the first listing of an attempt is whole. It finds files that appeared late."""
    folder = Folder(s3_server, bucket, tmp_path, s3_proxy.endpoint)
    for number in range(10, 15):
        folder.put(f"{number}.json", {"k": "a", "n": number})
    source = folder.source(names_rise=True, max_files=3)
    source.accept(planned(source))
    second = planned(source)
    assert names(second) == ["13.json", "14.json"]
    source.accept(second)
    folder.put("12a.json", {"k": "late", "n": 0})
    folder.put("15.json", {"k": "a", "n": 15})
    mark = s3_proxy.mark()
    assert names(planned(source)) == ["15.json"]
    assert planned(source) == planned(source)
    assert all(request.query["start-after"] == "in/14.json" for request in s3_proxy.requests(mark))
    restored = folder.source(names_rise=True)
    restored.restore(source.checkpoint(), [])
    assert sorted(names(planned(restored))) == ["12a.json", "15.json"]


def test_an_epoch_makes_one_listing_and_one_request_per_small_file(
    spark: SparkSession, s3_server: SeaweedServer, bucket: str, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    folder = Folder(s3_server, bucket, tmp_path, s3_proxy.endpoint)
    for number in range(4):
        folder.put(f"{number}.json", {"k": "a", "n": number})
    source = folder.source()
    mark = s3_proxy.mark()
    slice = planned(source)
    assert s3_proxy.counts(mark) == {"LIST": 1}
    mark = s3_proxy.mark()
    assert source.read(spark, slice).count() == 4
    assert s3_proxy.counts(mark) == {"GET": 4}


def test_store_that_is_away_is_waited_for(
    s3_server: SeaweedServer, bucket: str, s3_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStoreFiles.__init__, "__defaults__", (0.5, 2.0, None))
    folder = Folder(s3_server, bucket, tmp_path, s3_proxy.endpoint)
    folder.put("a.json", {"k": "a", "n": 1})
    source = folder.source()
    for _ in range(2):
        s3_proxy.down()
        with pytest.raises(SourceUnavailable, match=r"Source files:s3://.* could not be listed"):
            source.plan(UNLIMITED)
        s3_proxy.up()
        slice = planned(source)
    (record,) = records_of(slice)
    s3_proxy.down()
    away = pytest.raises(SourceUnavailable, match=r"File a\.json could not be read")
    with away, source._files.translated("be read", "File a.json"):  # as in a task
        source._files.read(record, 0, 1)


def test_refusals_and_options_are_reported(spark: SparkSession, folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"NoSuchBucket.*Create the bucket"):
        files.source("s3://no-such-bucket-here/in", "json", SCHEMA, **folder.options).make().plan(UNLIMITED)
    (tmp_path / "wrong").write_text("wrong")
    wrong: dict[str, Any] = {"secret_access_key": secret(f"file:{tmp_path / 'wrong'}")}
    with pytest.raises(SourceError, match="SignatureDoesNotMatch"):
        folder.source(**wrong).plan(UNLIMITED)
    with pytest.raises(SourceError, match=r"to infer the columns from\. Add one, or set schema="):
        folder.source(format="parquet", schema=None).schema(spark)
    assert folder.source().plan(UNLIMITED) is None  # a prefix without objects is an empty folder
    folder.put_bytes("a.json.snappy", b"x")
    source = folder.source()
    with pytest.raises(Exception, match=r"extension \.snappy cannot be decompressed"):
        source.read(spark, planned(source)).collect()
    folder.put_bytes("a.json.snappy", gzip.compress(b"{}" * 1000)[:-20])
    folder.delete("a.json.snappy")
    folder.put_bytes("a.json.gz", gzip.compress(b"{}" * 1000)[:-10])
    source = folder.source()
    with pytest.raises(Exception, match=r"a\.json\.gz cannot be decompressed"):
        source.read(spark, planned(source)).collect()
    for options, message in (
        ({"multiLine": True}, "no option 'multiLine' on object stores"),
        ({"secret_access_key": "text"}, r"must be a secret, such as secret_access_key=secret\('env:NAME'\)"),
        ({"account_name": "text"}, "no option 'account_name' for s3://"),
        ({"endpoint": "http://169.254.169.254"}, "link-local address or a metadata service"),
        ({"endpoint": "localhost"}, "endpoint must be a URL"),
        ({"access_key_id": None}, "belong together"),
        ({"names_rise": 1}, "must be True or False"),
    ):
        with pytest.raises(OptionError, match=message):
            folder.source(**options)
    with pytest.raises(OptionError, match="region applies to object stores only"):
        files.source("in", "json", SCHEMA, region="x")
    with pytest.raises(OptionError, match="names_rise applies to object stores only"):
        files.source("in", "json", SCHEMA, names_rise=True)


def test_table_is_read_completely(spark: SparkSession, folder: Folder) -> None:
    folder.put("a.json", {"k": "a", "n": 1})
    folder.put("b.json", {"k": "b", "n": 2})
    table = files.table(folder.url(), format="json", schema=SCHEMA, **folder.options)
    assert sorted(map(tuple, table.read(spark).collect())) == [("a", 1), ("b", 2)]
    assert str(table.description["secret_access_key"]).startswith("file:")
