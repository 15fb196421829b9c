"""Subfolders of sources and tables of files: partition folders, recursive reading, and Epochal's own output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.backends.files import FilesBackend
from epochal.connectors import console, files, generator
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.source import SliceLimits
from epochal.engine.failures import failure_of
from epochal.engine.frames import StaticTables
from epochal.errors import OptionError, SchemaError, SourceError
from epochal.pipeline.definitions import TableDefinition
from epochal.pipeline.graph import StaticNode

SCHEMA = "day date, v int, place string"
ODD = "a/b c%:=+é[1]{x}"
UNLIMITED = SliceLimits(None)


def put(path: Path, *records: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def source(path: object, schema: str | None = SCHEMA, format: Any = "json", **options: Any) -> Any:
    return files.source(str(path), format, schema, **options).make()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


def read(spark: SparkSession, made: Any) -> list[tuple[Any, ...]]:
    slice = made.plan(UNLIMITED)
    assert slice is not None
    return rows(made.read(spark, slice))


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_partition_folders_have_the_values_that_spark_reads(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Spark writes the folders and is the independent reader: names that need escapes, nulls, several levels."""
    written = spark.createDataFrame(
        [("2026-05-01", 1, ODD), ("2026-05-01", 2, None), ("2026-05-02", 3, "007"), (None, 4, "x")],
        "day string, v int, place string",
    ).selectExpr("cast(day as date) AS day", "v", "place")
    root = tmp_path / "data [1]{x}"
    written.coalesce(1).write.partitionBy("day", "place").format(format).save(str(root))
    expected = rows(written)
    assert read(spark, source(root, format=format)) == expected
    assert rows(files.table(str(root), format, SCHEMA).read(spark)) == expected  # type: ignore[arg-type]
    undeclared = source(root, "v int", format)
    assert (undeclared.schema(spark).names, read(spark, undeclared)) == (["v"], [(1,), (2,), (3,), (4,)])


def test_files_at_different_depths_are_one_result(spark: SparkSession, tmp_path: Path) -> None:
    """The value of a folder takes precedence over that of the file, which is used without such a folder."""
    put(tmp_path / "a.json", {"v": 1, "place": "file"})
    put(tmp_path / "place=x/b.json", {"v": 2, "place": "other"}, {"v": "bad"})
    put(tmp_path / "PLACE=y/hour=3/c.json", {"v": 3})
    put(tmp_path / "place=x/_hidden/d.json", {"v": 9})
    put(tmp_path / "_aside/place=x/e.json", {"v": 9})
    made = source(tmp_path, "v int, place string, hour int", malformed="drop")
    assert read(spark, made) == [(1, "file", None), (2, "x", None), (3, "y", 3)]
    with pytest.raises(Exception, match="does not fit") as caught:
        read(spark, source(tmp_path, "v int, place string"))
    assert "place=x/b.json" in failure_of(caught.value).message


def test_folder_with_a_value_of_another_type_is_named(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "day=2026-05-01/a.json", {"v": 1})
    put(tmp_path / "day=soon/b.json", {"v": 2})
    made = source(tmp_path)
    with pytest.raises(Exception, match="soon") as caught:
        made.read(spark, made.plan(UNLIMITED)).select("v").collect()
    failure = failure_of(caught.value)
    assert (failure.type, "day=soon/b.json" in failure.message) == ("source-error", True)
    for schema, reason in (("day date", "at least one column of the files"), ("day array<int>, v int", "cannot be")):
        with pytest.raises(SchemaError, match=reason):
            read(spark, source(tmp_path, schema))
    put(tmp_path / "day=2026-05-01/DAY=2026-05-02/a.json", {"v": 1})
    with pytest.raises(SourceError, match="two folders of the same key"):
        read(spark, source(tmp_path))


def test_recursive_reads_every_subfolder_and_no_folder_is_a_column(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "a.json", {"v": 1})
    put(tmp_path / "place=x/eu/b.json", {"v": 2, "place": "file"})
    put(tmp_path / "us/c.json", {"v": 3})
    put(tmp_path / "us/_tmp/d.json", {"v": 9})
    (tmp_path / "us/again").symlink_to(tmp_path)
    made = source(tmp_path, "v int, place string", recursive=True)
    assert read(spark, made) == [(1, None), (2, "file"), (3, None)]
    table = files.table(str(tmp_path), "json", "v int", recursive=True)
    assert (rows(table.read(spark)), table.description["recursive"]) == ([(1,), (2,), (3,)], True)
    assert read(spark, source(tmp_path, "v int")) == [(1,)]
    with pytest.raises(OptionError, match="recursive is 1; it must be True or False"):
        source(tmp_path, recursive=1)


@pytest.mark.parametrize("pattern", ["", "/*"])
def test_data_in_other_subfolders_only_is_refused(spark: SparkSession, tmp_path: Path, pattern: str) -> None:
    path = put(tmp_path / "2026/05/a.json", {"v": 1})
    location = f"{tmp_path}{pattern}"
    with pytest.raises(SourceError, match=f"only in subfolders .* such as {path}. Read every subfolder with recursive"):
        source(location).plan(UNLIMITED)
    with pytest.raises(SourceError, match="recursive=True"):
        files.table(location, "json", "v int").read(spark)
    with pytest.raises(SourceError, match="recursive=True"):
        source(location, None, "parquet").schema(spark)
    assert read(spark, source(location, "v int", recursive=True)) == [(1,)]
    put(tmp_path / "new.json", {"v": 2})
    made = source(tmp_path, "v int")
    made.accept(made.plan(UNLIMITED))
    (tmp_path / "new.json").rename(tmp_path / "2026/new.json")  # processed files may be moved
    assert made.plan(UNLIMITED) is None


def test_a_pattern_finds_partition_folders(spark: SparkSession, tmp_path: Path) -> None:
    for month in (4, 5):
        put(tmp_path / f"eu/day=2026-0{month}-01/a.json", {"v": month})
    put(tmp_path / "us/day=2026-05-01/b.json", {"v": 6})
    assert [row[1] for row in read(spark, source(f"{tmp_path}/eu/day=2026-05-*"))] == [5]
    assert [(str(row[0]), row[1]) for row in read(spark, source(f"{tmp_path}/*/day=*/*.json"))] == [
        ("2026-04-01", 4),
        ("2026-05-01", 5),
        ("2026-05-01", 6),
    ]


def test_other_file_systems_and_encodings_have_partition_folders(spark: SparkSession, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("a.json", "day=1/b.json", "day=1/_tmp/c.json", "other/d.json", "day=2/h=1/e.json"):
        memory.pipe(f"/folders/{name}", b"{}")
    found = [record["path"] for record in source("memory://folders").plan(UNLIMITED).detail["files"]]
    assert sorted(found) == [f"memory:///folders/{name}" for name in ("a.json", "day=1/b.json", "day=2/h=1/e.json")]
    memory.rm("/folders/a.json")
    memory.rm("/folders/day=1", recursive=True)
    memory.rm("/folders/day=2", recursive=True)
    with pytest.raises(SourceError, match=r"other/d\.json"):
        source("memory://folders").plan(UNLIMITED)
    path = tmp_path / "place=caf%25é/a.json"
    path.parent.mkdir()
    path.write_bytes('{"v": 1}\n'.encode("utf-16"))
    assert read(spark, source(tmp_path, "v int, place string", encoding="utf-16")) == [(1, "caf%é")]


class Writing:
    """A files sink of one application that prepares and commits epochs on request."""

    def __init__(self, path: Path, format: str) -> None:
        self.backend = FilesBackend(str(path), format)
        self.backend.recover(self._scope(1))

    def _scope(self, epoch: int) -> EpochScope:
        return EpochScope("writer", EpochKey("main", epoch), 1, EpochKey("main", epoch - 1) if epoch > 1 else None)

    def prepare(self, epoch: int, values: Sequence[int]) -> list[Handle]:
        transaction = self.backend.start(TaskScope(self._scope(epoch), "out", 0))
        transaction.write(pa.RecordBatch.from_pydict({"v": pa.array(values, pa.int32())}))
        return [transaction.pre_commit()]

    def commit(self, epoch: int, handles: Sequence[Handle]) -> None:
        self.backend.commit(self._scope(epoch), handles)


@pytest.mark.parametrize("format", ["json", "parquet", "csv"])
def test_the_output_of_a_files_sink_is_read_back_while_it_grows(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    sink = Writing(tmp_path / "out", format)
    header = {"header": True} if format == "csv" else {}
    made = source(tmp_path / "out", "v int, epoch bigint", format, **header)
    assert made.plan(UNLIMITED) is None
    first = sink.prepare(1, [1, 2])
    assert made.plan(UNLIMITED) is None  # prepared, and not committed
    sink.commit(1, first)
    second = sink.prepare(2, [3])
    slice = made.plan(UNLIMITED)
    assert rows(made.read(spark, slice)) == [(1, 1), (2, 1)]
    made.accept(slice)
    assert made.plan(UNLIMITED) is None
    sink.commit(2, second)
    assert read(spark, made) == [(3, 2)]
    assert rows(files.table(str(tmp_path / "out"), format, "v int", **header).read(spark)) == [(1,), (2,), (3,)]  # type: ignore[arg-type]
    if format == "parquet":
        assert rows(files.table(str(tmp_path / "out")).read(spark)) == [(1,), (2,), (3,)]


def test_columns_that_differ_only_by_case_or_type_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [2**40], "Text": ["a"]}), tmp_path / "types.parquet")
    pq.write_table(pa.table({"n": [1], "N": [2], "v": [3]}), tmp_path / "case.parquet")
    assert read(spark, source(tmp_path / "types.parquet", "TEXT string, N bigint", "parquet")) == [("a", 2**40)]
    for schema in ("n int", "n string", "n double", "n decimal(20,2)", "text bigint"):
        with pytest.raises(Exception, match="Parquet") as caught:
            read(spark, source(tmp_path / "types.parquet", schema, "parquet"))
        failure = failure_of(caught.value)
        assert (failure.type, "types.parquet" in failure.message) == ("invalid-schema", True)
        assert "Declare the type of the files" in failure.message
    with pytest.raises(Exception, match="duplicate") as caught:
        read(spark, source(tmp_path / "case.parquet", "n bigint", "parquet"))
    failure = failure_of(caught.value)
    assert (failure.type, "differ only by case" in failure.message) == ("invalid-schema", True)
    assert read(spark, source(tmp_path / "case.parquet", "v bigint", "parquet")) == [(3,)]
    with pytest.raises(SchemaError, match="names differ only by case"):
        source(tmp_path / "case.parquet", None, "parquet").schema(spark)
    with pytest.raises(SchemaError, match="'a' and 'A'"):
        source(tmp_path, "a int, A int").schema(spark)


def static_tables(pipeline: Pipeline) -> tuple[StaticNode, ...]:
    pipeline.read("in", generator.source({"v": "id"})).write("out", console.sink())
    return pipeline.graph().static_tables


def test_a_static_table_is_read_again_when_its_refresh_is_due(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in/a.json", {"v": 1})
    pipeline = Pipeline("tables")
    pipeline.table("fixed", files.table(str(tmp_path / "in"), "json", "v int"))
    pipeline.table("fresh", files.table(str(tmp_path / "in"), "json", "v int", refresh="1 hour"))
    nodes = static_tables(pipeline)
    assert [node.description.get("refresh") for node in nodes] == [None, "1 hour"]
    tables, hour = StaticTables(), 3_600_000_000

    def at(epoch_time: int) -> list[int]:
        return [frame.count() for _, frame in sorted(tables.of(spark, nodes, epoch_time).items())]

    assert at(7) == [1, 1]
    put(tmp_path / "in/b.json", {"v": 2})
    assert at(7) == at(6 + hour) == [1, 1]  # also for a retry
    assert at(7 + hour) == [1, 2]
    put(tmp_path / "in/c.json", {"v": 3})
    assert at(6 + 2 * hour) == [1, 2]
    assert at(7 + 2 * hour) == [1, 3]
    with pytest.raises(OptionError, match=r"files\.table: refresh is 'soon'"):
        files.table("in", "json", "v int", refresh="soon")


def test_a_table_whose_columns_change_at_a_refresh_is_refused(spark: SparkSession) -> None:
    schemas = iter(["v int", "v bigint"])
    pipeline = Pipeline("tables")
    made = TableDefinition("made", lambda spark: spark.createDataFrame([], next(schemas)), refresh=1)
    pipeline.table("changing", made)
    nodes, tables = static_tables(pipeline), StaticTables()
    tables.of(spark, nodes, 0)
    with pytest.raises(SchemaError, match=r"Table 'changing' had the columns struct<v:int> .* struct<v:bigint> now"):
        tables.of(spark, nodes, 1)
