"""Files as source and table: slices, changed files, malformed records, options."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from epochal.connectors import files
from epochal.connectors.files import FilesSource
from epochal.contracts.backend import SinkPlace
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.failures import failure_of
from epochal.errors import OptionError, SchemaError, SourceChanged, SourceError
from tests.kit.waiting import eventually

SCHEMA = "k string, n int"
UNLIMITED = SliceLimits(None)


def put(folder: Path, name: str, *records: object, at: int | None = None) -> Path:
    """A file of JSON lines (text is written unchanged), modified at second ``at``."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in records))
    if at is not None:
        os.utime(path, (at, at))
    return path


def made(path: object, **options: object) -> FilesSource:
    source = files.source(str(path), **{"format": "json", "schema": SCHEMA, **options}).make()  # type: ignore[arg-type]
    assert isinstance(source, FilesSource)
    return source


def planned(source: FilesSource, limit: int | None = None) -> Slice:
    slice = source.plan(SliceLimits(limit))
    assert slice is not None
    return slice


def names(slice: Slice) -> list[str]:
    return [Path(record["path"]).name for record in slice.detail["files"]]


def test_files_of_a_folder_are_read_in_order_of_modification_time(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "b.json", {"k": "b", "n": 1}, at=100)
    put(tmp_path, "a.json", {"k": "a", "n": 2}, at=200)
    put(tmp_path, "_hidden.json", "nonsense", at=50)
    put(tmp_path, ".part", "nonsense", at=50)
    put(tmp_path, "deeper/c.json", "nonsense", at=50)
    source = made(tmp_path)
    first = planned(source)
    assert names(first) == ["b.json", "a.json"]
    assert first.start == {"files": 0}
    assert first.end == {"files": 2}
    assert sorted(map(tuple, source.read(spark, first).collect())) == [("a", 2), ("b", 1)]
    assert planned(source) == first  # not accepted yet
    source.accept(first)
    assert source.plan(UNLIMITED) is None
    put(tmp_path, "late.json", {"k": "c", "n": 3}, at=10)  # older, but new here
    assert names(planned(source)) == ["late.json"]


def test_restored_source_continues_at_its_position(tmp_path: Path) -> None:
    source = made(tmp_path, max_files=1)
    for number in range(4):
        put(tmp_path, f"{number}.json", {"k": "x", "n": number}, at=number + 1)
    slices = []
    for _ in range(3):
        slices.append(planned(source))
        source.accept(slices[-1])
    assert [names(slice) for slice in slices] == [["0.json"], ["1.json"], ["2.json"]]
    from_slices, from_checkpoint = made(tmp_path), made(tmp_path)
    from_slices.restore(None, [Slice.model_validate_json(slice.model_dump_json()) for slice in slices])
    from_checkpoint.restore(json.loads(json.dumps(source.checkpoint())), [])
    assert planned(from_slices) == planned(from_checkpoint) == planned(source)


def test_globs_single_files_and_names_with_pattern_characters(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "x/day=1/a [1] {x}.json", {"k": "a", "n": 1})
    put(tmp_path, "x/_staging/b.json", "nonsense")
    put(tmp_path, "x/day=1/c.txt", "nonsense")
    source = made(f"{tmp_path}/x/**/*.json")
    assert source.read(spark, planned(source)).collect() == [("a", 1)]
    one = made(tmp_path / "x/day=1/a [1] {x}.json")
    assert one.read(spark, planned(one)).collect() == [("a", 1)]
    put(tmp_path, "plain file.json", {"k": "p", "n": 1})
    single = made(tmp_path / "plain file.json")
    assert single.read(spark, planned(single)).collect() == [("p", 1)]


def test_relative_path_is_resolved_when_the_source_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "in/a.json", {"k": "a", "n": 1})
    monkeypatch.chdir(tmp_path)
    source = made("in")
    monkeypatch.chdir("/")
    assert planned(source).detail["files"][0]["path"] == f"{tmp_path}/in/a.json"


def test_file_changed_since_its_slice_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", {"k": "a", "n": 1}, at=100)
    source = made(tmp_path)
    slice = planned(source)
    put(tmp_path, "a.json", {"k": "a", "n": 1}, {"k": "a", "n": 2}, at=100)
    with pytest.raises(SourceChanged, match=r"a\.json has \d+ bytes instead of"):
        source.read(spark, slice)
    put(tmp_path, "a.json", {"k": "b", "n": 1}, at=101)
    with pytest.raises(SourceChanged, match="was rewritten"):
        source.read(spark, slice)
    source.accept(slice)
    with pytest.raises(SourceChanged, match="was rewritten"):
        source.plan(UNLIMITED)
    path.unlink()
    with pytest.raises(SourceChanged, match="is missing"):
        source.read(spark, slice)
    assert source.plan(UNLIMITED) is None  # processed files may be deleted
    put(tmp_path, "a.json", {"k": "a", "n": 1}, at=100)
    assert source.read(spark, slice).collect() == [("a", 1)]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}/none. Create it"):
        made(tmp_path / "none").plan(UNLIMITED)
    with pytest.raises(SourceError, match=f"{tmp_path}/none. Create it"):
        made(tmp_path / "none" / "*.json").plan(UNLIMITED)


def test_slices_respect_the_limit_of_records(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(5):
        pyarrow.parquet.write_table(pa.table({"n": list(range(100))}), tmp_path / f"{number}.parquet")
        put(tmp_path / "text", f"{number}.json", *[{"k": "key", "n": row} for row in range(10_000)], at=number + 1)
    exact = made(tmp_path, format="parquet", schema=None)
    slice = planned(exact, 250)
    assert (len(names(slice)), slice.rows) == (2, 200)
    assert exact.read(spark, slice).count() == 200
    assert planned(exact, 10).rows == 100  # at least one file
    assert len(names(planned(made(tmp_path / "text"), 35_000))) == 3


@pytest.mark.parametrize("column", [["k", "n"], ["k"], []])
def test_a_malformed_record_fails_the_epoch_and_names_its_file(
    spark: SparkSession, tmp_path: Path, column: list[str]
) -> None:
    """For any columns that the pipeline uses, also none (a count)."""
    put(tmp_path, "good.json", {"k": "a", "n": 1})
    put(tmp_path, "bad.json", {"k": "a", "n": 1}, {"k": 'qu"ote', "n": "many"})
    source = made(tmp_path)
    frame = source.read(spark, planned(source))
    with pytest.raises(Exception) as caught:  # Spark's, as the engine receives it
        (frame.select(*column) if column else frame.groupBy().count()).collect()
    failure = failure_of(caught.value)
    assert failure.type == "malformed-record"
    assert "bad.json does not fit" in failure.message
    assert "many" in failure.message
    assert "malformed='drop'" in failure.message


@pytest.mark.parametrize("column", [["k", "n"], ["k"], []])
def test_malformed_records_are_dropped_and_counted(
    spark: SparkSession, tmp_path: Path, column: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.json", {"k": "a", "n": 1}, "nonsense", {"k": "b", "n": "x"}, {"k": None, "n": 2})
    source = made(tmp_path, malformed="drop")
    slice = planned(source)
    frame = source.read(spark, slice)
    rows = (frame.select(*column) if column else frame).collect()
    assert len(rows) == 2
    with caplog.at_level(logging.WARNING):
        source.acknowledge(slice)
        deadline = time.monotonic() + 20
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "Dropped 2 malformed records" in caplog.text


TRAILING = [
    '{"k":"a"}{"k":"b"}',
    '{"k":"a"} garbage',
    '{"k":"a"},{"k":"b"}',
    '[{"k":"a"},{"k":"b"}]',
    '[{"k":"a"}]',
    "[]",
    '{"k":"a"}]',
    '{"k":"a"}}',
    '{"k":"a"}]}',
    '{"k":"a"}}]',
    '{"k":"a"}],"r":[{"k":"b"}',
    '{"k":"a"}],"r":[{"k":"b"}]}',
    '{"k":"a","o":{"x":1}}]} {"r":[',
    '{"k":"a"} null',
    "null",
    "5",
    '"text"',
    '{"n":"text"}',
    '{"o":{"x":"text"}}',
    '{"n":99999999999}',
    '{"k":"a"',
    '{"k":"a"} // comment',
]
WHOLE = [
    '{"k":"a","n":1}',
    ' {"k":"}]","n":2} \t',
    '{"z":[{"q":1}],"n":3}',
    '{"o":{"x":1},"n":4}',
    '{"n":5,"z":{"y":[{"q":"]"}]}}',
    "{'k':'a','n':6}",
    '{"k":null,"o":null,"n":7}',
]


@pytest.mark.parametrize("options", [{}, {"encoding": "iso-8859-1"}, {"lineSep": "\n"}])
def test_line_with_other_than_one_object_is_malformed(
    spark: SparkSession, tmp_path: Path, options: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.json", "\ufeff" + WHOLE[0] if not options else WHOLE[0], "", *TRAILING, "  ", *WHOLE[1:])
    schema = "k string, n int, o struct<x: int>"
    source = made(tmp_path, schema=schema, malformed="drop", **options)
    slice = planned(source)
    rows = sorted((row.n, row.k) for row in source.read(spark, slice).collect())
    assert rows == [(1, "a"), (2, "}]"), (3, None), (4, None), (5, None), (6, "a"), (7, None)]
    with caplog.at_level(logging.WARNING):
        source.acknowledge(slice)
        eventually(lambda: f"Dropped {len(TRAILING)} malformed records" in caplog.text)


def test_each_line_with_more_than_one_object_fails_the_epoch(spark: SparkSession, tmp_path: Path) -> None:
    for number, line in enumerate(TRAILING[:3]):
        put(tmp_path, f"{number}/a.json", WHOLE[0], line)
        source = made(tmp_path / str(number), schema="k string, n int")
        with pytest.raises(Exception, match="does not fit") as failed:
            source.read(spark, planned(source)).collect()
        assert line in (failure_of(failed.value).message)


def test_invalid_utf8_is_malformed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"k":"\xff","n":1}\n{"k":"\xc3\xa9","n":2}\n')
    source = made(tmp_path, malformed="drop")
    assert [tuple(row) for row in source.read(spark, planned(source)).collect()] == [("é", 2)]


def test_csv_with_header_and_separator_is_read(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "k;n", "x;1", '"a;b";2', ";3")
    source = made(tmp_path, format="csv", header=True, sep=";")
    assert source.read(spark, planned(source)).collect() == [("x", 1), ("a;b", 2), (None, 3)]
    put(tmp_path, "b.csv", "k;n", "x;one")
    with pytest.raises(Exception, match="malformed-record"):
        source.read(spark, planned(source)).collect()


def test_invalid_parquet_file_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", "nonsense")
    with pytest.raises(SourceError, match=r"a\.parquet is not a complete Parquet file"):
        made(tmp_path, format="parquet", schema=None).plan(UNLIMITED)


def test_parquet_source_infers_its_schema_or_requires_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="or set schema="):
        made(tmp_path, format="parquet", schema=None).schema(spark)
    pyarrow.parquet.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    assert made(tmp_path, format="parquet", schema=None).schema(spark).simpleString() == "struct<n:bigint>"


def test_a_table_is_read_whole(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "a.json", {"k": "a", "n": 1})
    put(tmp_path, "b.json", {"k": "b", "n": 2})
    table = files.table(str(tmp_path), format="json", schema=SCHEMA)
    assert sorted(map(tuple, table.read(spark).collect())) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"format": "jsn"}, "Did you mean 'json'?"),
        ({"schema": None}, "needs a schema to read json"),
        ({"heade": True, "format": "csv"}, "Did you mean 'header'?"),
        ({"mode": "PERMISSIVE"}, "has no option 'mode'"),
        ({"malformed": "ignore"}, "one of fail, drop"),
        ({"max_files": 0}, "an integer above 0"),
        ({"path": " "}, "needs a path"),
    ],
)
def test_options_are_checked(options: dict[str, object], part: str) -> None:
    with pytest.raises(OptionError) as caught:
        files.source(**{"path": "in", "format": "json", "schema": SCHEMA, **options})  # type: ignore[arg-type]
    assert part in caught.value.message


def test_sink_options_are_checked() -> None:
    with pytest.raises(OptionError, match="no option 'partition'"):
        files.sink("out", partition="k")
    with pytest.raises(OptionError, match="renames a folder atomically"):
        files.sink("ftp://server/out").make(SinkPlace("out"))


def test_invalid_schema_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="k strin"):
        made(tmp_path, schema="k strin").schema(spark)


def test_available_files_are_those_that_exist_at_the_start(tmp_path: Path) -> None:
    put(tmp_path, "a.json", {"k": "a", "n": 1}, at=100)
    put(tmp_path, "b.json", {"k": "b", "n": 1}, at=200)
    put(tmp_path, "c.json", {"k": "c", "n": 1}, at=300)
    source = made(tmp_path, max_files=1)
    source.limit_to_available()
    put(tmp_path, "early.json", {"k": "d", "n": 1}, at=50)
    put(tmp_path, "late.json", {"k": "e", "n": 1}, at=400)
    taken = []
    while not source.ended:
        if (slice := source.plan(UNLIMITED)) is not None:
            source.accept(slice)
            taken += names(slice)
    assert taken == ["a.json", "b.json", "c.json"]
    later = made(tmp_path)
    later.restore(source.checkpoint(), [])
    later.limit_to_available()
    assert names(planned(later)) == ["early.json", "late.json"]


def test_bounded_source_ends_with_the_files_that_exist_at_the_start(tmp_path: Path) -> None:
    put(tmp_path, "a.json", {"k": "a", "n": 1}, at=100)
    source = made(tmp_path, bounded=True)
    source.limit_to_bounds()
    put(tmp_path, "late.json", {"k": "e", "n": 1}, at=400)
    slice = planned(source)
    source.accept(slice)
    assert (names(slice), source.plan(UNLIMITED), source.ended, source.bounded) == (["a.json"], None, True, True)
    endless = made(tmp_path)
    endless.limit_to_bounds()
    endless.accept(planned(endless))
    assert (endless.plan(UNLIMITED), endless.ended, endless.bounded) == (None, False, False)
    described = files.source(str(tmp_path), format="json", schema="k string", bounded=True).description
    assert described == {"path": str(tmp_path), "format": "json", "bounded": True}
    with pytest.raises(OptionError, match="bounded is 'yes'; it must be True or False"):
        files.source(str(tmp_path), format="json", schema="k string", bounded="yes")  # type: ignore[arg-type]


def test_source_without_new_files_has_ended(tmp_path: Path) -> None:
    source = made(tmp_path)
    source.limit_to_available()
    assert source.plan(UNLIMITED) is None
    assert source.ended


def test_changed_committed_file_is_reported_with_change_and_fix(tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", {"k": "a", "n": 1}, at=100)
    source = made(tmp_path)
    source.accept(planned(source))
    put(tmp_path, "a.json", {"k": "a", "n": 1}, {"k": "a", "n": 2}, at=3600)
    with pytest.raises(SourceChanged) as caught:
        source.plan(UNLIMITED)
    message = caught.value.message
    assert message.startswith(f"{path} has {path.stat().st_size} bytes instead of ")
    assert "modified at 1970-01-01 01:00:00.000000000 UTC, and had been at 1970-01-01 00:01:40.000000000 UTC" in message
    assert "since an epoch committed its rows" in message
    assert "Write new data to a new file" in message
    put(tmp_path, "a.json", {"k": "a", "n": 1})
    subprocess.run([*shlex.split(message[message.index("touch -d") :].partition(")")[0]), path], check=True)
    assert source.plan(UNLIMITED) is None
