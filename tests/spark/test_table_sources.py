"""Sources over tables of versions: all rows once, in order, whatever the table's own maintenance does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.types import DoubleType

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.connectors.delta_versions import DeltaVersions
from epochal.connectors.iceberg_snapshots import IcebergSnapshots
from epochal.connectors.table_source import Start, TableSource
from epochal.contracts.source import Slice, SliceLimits
from epochal.errors import OptionError, SourceError, SourceUnavailable
from tests.kit.iceberg_tables import sqlite_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Followed:
    """A table, written without Epochal, and sources that follow it."""

    source_kind: str

    def append(self, *ids: int) -> None:
        self.write(pa.table({"id": list(ids), "name": [f"row {id}" for id in ids]}, schema=COLUMNS))

    def write(self, rows: pa.Table) -> None:
        raise NotImplementedError

    def add_column(self) -> None:
        """Add the column ``more``, in a version without rows."""
        raise NotImplementedError

    def compact(self) -> None:
        raise NotImplementedError

    def delete(self) -> None:
        raise NotImplementedError

    def source(
        self, start: Start | int = "earliest", max_files: int | None = None, bounded: bool = False
    ) -> TableSource:
        raise NotImplementedError

    def version(self) -> int:
        raise NotImplementedError


class FollowedDelta(Followed):
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "orders")

    def write(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, mode="append", schema_mode="merge")

    def add_column(self) -> None:
        DeltaTable(self.path).alter.add_columns([Field("more", PrimitiveType("double"))])

    def compact(self) -> None:
        DeltaTable(self.path).optimize.compact()

    def delete(self) -> None:
        DeltaTable(self.path).delete("id < 3")

    def source(
        self, start: Start | int = "earliest", max_files: int | None = None, bounded: bool = False
    ) -> TableSource:
        return TableSource(DeltaVersions(DeltaAddress(self.path)), start, max_files, bounded)

    def version(self) -> int:
        return DeltaTable(self.path).version()


class FollowedIceberg(Followed):
    def __init__(self, folder: Path) -> None:
        self.orders = sqlite_catalog(folder)

    def write(self, rows: pa.Table) -> None:
        table = self.orders.table() or self.orders.catalog.create_table(self.orders.address.table, rows.schema)
        table.append(rows)

    def add_column(self) -> None:
        table = self.orders.table()
        assert table is not None
        with table.update_schema() as update:
            update.add_column("more", DoubleType())

    def compact(self) -> None:
        """Rewrite all files, as other engines do; the library has no compaction."""
        from pyiceberg.table import Transaction
        from pyiceberg.table.snapshots import Operation, Summary
        from pyiceberg.table.update import AddSnapshotUpdate
        from pyiceberg.table.update.snapshot import _OverwriteFiles

        table = self.orders.table()
        assert table is not None
        transaction = Transaction(table)
        rewrite = _OverwriteFiles(Operation.OVERWRITE, transaction, table.io)
        for task in table.scan().plan_files():
            rewrite.delete_data_file(task.file)
        from epochal.backends.iceberg.data_file import file_numbers, written

        for file in written(table.metadata, table.io, table.scan().to_arrow(), "compacted", file_numbers()):  # type: ignore[arg-type]
            rewrite.append_data_file(file)
        (added, moved), requirements = rewrite._commit()
        summary = Summary(operation=Operation.REPLACE, **added.snapshot.summary.additional_properties)
        replaced = AddSnapshotUpdate(snapshot=added.snapshot.model_copy(update={"summary": summary}))
        table.catalog.commit_table(table, requirements, (replaced, moved))

    def delete(self) -> None:
        table = self.orders.table()
        assert table is not None
        table.delete("id < 3")

    def source(
        self, start: Start | int = "earliest", max_files: int | None = None, bounded: bool = False
    ) -> TableSource:
        return TableSource(IcebergSnapshots(self.orders.address), start, max_files, bounded)

    def version(self) -> int:
        table = self.orders.table()
        snapshot = None if table is None else table.current_snapshot()
        assert snapshot is not None and snapshot.sequence_number is not None
        return snapshot.sequence_number


@pytest.fixture(params=[FollowedDelta, FollowedIceberg], ids=["delta", "iceberg"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Followed:
    table: Followed = request.param(tmp_path)
    return table


NO_LIMIT = SliceLimits(None)


def taken(source: TableSource, limits: SliceLimits = NO_LIMIT) -> Iterator[Slice]:
    """Plan and accept until nothing is left."""
    while (slice := source.plan(limits)) is not None:
        source.accept(slice)
        yield slice


def ids(source: TableSource, spark: SparkSession, slices: list[Slice]) -> list[int]:
    return sorted(row["id"] for slice in slices for row in source.read(spark, slice).collect())


def test_the_present_version_and_later_ones_are_read_once(followed: Followed, spark: SparkSession) -> None:
    followed.append(1, 2)
    followed.append(3)
    source = followed.source()
    assert [field.name for field in source.schema(spark).fields] == ["id", "name"]
    first = list(taken(source))
    assert ids(source, spark, first) == [1, 2, 3]
    assert sum(slice.rows or 0 for slice in first) == 3
    followed.append(4, 5)
    followed.append(6)
    second = list(taken(source))
    assert ids(source, spark, second) == [4, 5, 6]
    assert source.plan(NO_LIMIT) is None
    assert ids(source, spark, [*first, *second]) == [1, 2, 3, 4, 5, 6]  # the same rows each time


def test_every_position_can_be_restored(followed: Followed, spark: SparkSession) -> None:
    for number in range(4):
        followed.append(number)
    whole = followed.source(max_files=1)
    slices = list(taken(whole))
    followed.append(4)
    followed.append(5)
    slices += list(taken(whole))
    assert [len(slice.detail["files"]) for slice in slices] == [1] * 6
    for place in range(len(slices) + 1):
        again = followed.source(max_files=2)
        again.restore(None, slices[:place])
        assert ids(again, spark, [*slices[:place], *taken(again)]) == list(range(6))
        later = followed.source()
        later.restore(again.checkpoint(), [])
        assert later.plan(NO_LIMIT) is None


def test_an_aborted_slice_is_planned_again(followed: Followed, spark: SparkSession) -> None:
    followed.append(1)
    source = followed.source()
    before = source.plan(NO_LIMIT)
    followed.append(2)
    after = source.plan(NO_LIMIT)
    assert before is not None and after is not None
    assert before.start == after.start
    source.accept(after)
    assert ids(source, spark, [after, *taken(source)]) == [1, 2]


def test_a_limit_of_rows(followed: Followed) -> None:
    for number in range(0, 12, 3):
        followed.append(number, number + 1, number + 2)
    assert [slice.rows for slice in taken(followed.source(), SliceLimits(7))] == [6, 6]
    assert [slice.rows for slice in taken(followed.source(), SliceLimits(1))] == [3, 3, 3, 3]


def test_compactions_are_skipped(followed: Followed, spark: SparkSession) -> None:
    source = followed.source()
    followed.append(1)
    followed.append(2)
    slices = list(taken(source))
    followed.compact()
    assert source.plan(NO_LIMIT) is None
    followed.append(3)
    followed.compact()
    slices += taken(source)
    assert ids(source, spark, slices[-1:]) == [3]
    again = followed.source()
    again.restore(None, slices)
    assert again.plan(NO_LIMIT) is None
    assert ids(again, spark, list(taken(followed.source()))) == [1, 2, 3]


def test_a_version_that_removes_rows_is_named(followed: Followed) -> None:
    source = followed.source()
    followed.append(1, 2, 3)
    list(taken(source))
    followed.delete()
    with pytest.raises(SourceError, match=rf"(version|snapshot) \d+ \(.*\) removes rows.*start={followed.version()}"):
        source.plan(NO_LIMIT)
    followed.append(4)
    with pytest.raises(SourceError, match="removes rows"):
        source.plan(NO_LIMIT)


def test_latest_leaves_the_present_rows_out(followed: Followed, spark: SparkSession) -> None:
    followed.append(1)
    source = followed.source("latest")
    assert source.plan(NO_LIMIT) is None
    followed.append(2)
    assert ids(source, spark, list(taken(source))) == [2]


def test_a_version_can_be_named(followed: Followed, spark: SparkSession) -> None:
    followed.append(1)
    followed.append(2)
    version = followed.version()
    followed.append(3)
    source = followed.source(version)
    first = source.plan(NO_LIMIT)
    assert first is not None
    assert ids(source, spark, list(taken(source))) == [1, 2, 3]
    with pytest.raises(SourceError, match="any more"):
        followed.source(version + 50).plan(NO_LIMIT)


def test_a_bounded_source_ends(followed: Followed, spark: SparkSession) -> None:
    followed.append(1)
    followed.append(2)
    source = followed.source(bounded=True, max_files=1)
    source.limit_to_bounds()
    assert not source.ended
    followed.append(3)
    assert ids(source, spark, list(taken(source))) == [1, 2]
    assert source.ended


def test_a_missing_table_is_named(followed: Followed) -> None:
    with pytest.raises((SourceError, SourceUnavailable), match=r"there is no table. Create it"):
        followed.source().plan(NO_LIMIT)


def test_columns_that_are_added_later_are_read_from_the_next_start_on(followed: Followed, spark: SparkSession) -> None:
    """Also by a slice that was planned before, of files with and without the column."""
    followed.append(1)
    source = followed.source(max_files=1)
    source.schema(spark)
    slices = list(taken(source))
    followed.append(2)
    planned = source.plan(NO_LIMIT)
    assert planned is not None
    followed.add_column()
    followed.append(3)
    followed.write(pa.table({"id": [4], "name": ["row 4"], "more": [1.5]}))
    source.accept(planned)
    slices += [planned, *taken(source)]
    assert read(source, spark, slices) == [{"id": id, "name": f"row {id}"} for id in (1, 2, 3, 4)]
    later = followed.source()
    later.restore(None, slices[:1])
    assert later.schema(spark).names == ["id", "name", "more"]
    more = {1: None, 2: None, 3: None, 4: 1.5}
    expected = [{"id": id, "name": f"row {id}", "more": value} for id, value in more.items()]
    assert read(later, spark, slices) == expected
    assert read(later, spark, [slices[0], *taken(later)]) == expected


def read(source: TableSource, spark: SparkSession, slices: list[Slice]) -> list[dict[str, Any]]:
    found = [row.asDict() for slice in slices for row in source.read(spark, slice).collect()]
    return sorted(found, key=lambda row: int(row["id"]))


def test_a_log_that_was_cleaned_up_is_named(tmp_path: Path) -> None:
    table = FollowedDelta(tmp_path)
    table.append(1)
    source = table.source()
    list(taken(source))
    table.append(2)
    table.append(3)
    DeltaTable(table.path).create_checkpoint()
    for version in (0, 1):
        (Path(table.path) / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises((SourceError, SourceUnavailable), match="version 1"):
        source.plan(NO_LIMIT)


def test_a_snapshot_that_has_expired_is_named(tmp_path: Path) -> None:
    table = FollowedIceberg(tmp_path)
    table.append(1)
    source = table.source()
    slices = list(taken(source))
    table.append(2)
    opened = table.orders.table()
    assert opened is not None
    opened.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    again = table.source()
    again.restore(None, slices)
    with pytest.raises(SourceError, match="has expired before it was read"):
        again.plan(NO_LIMIT)


def test_a_file_that_was_deleted_is_named(tmp_path: Path, spark: SparkSession) -> None:
    table = FollowedDelta(tmp_path)
    table.append(1)
    source = table.source()
    slice = source.plan(NO_LIMIT)
    assert slice is not None
    for file in Path(table.path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match=r"was deleted before an epoch has read it, such as by VACUUM"):
        source.read(spark, slice).collect()


@pytest.mark.parametrize("partition_by", [None, ["day"], ["flag", "name"]])
def test_values_are_those_of_the_table(tmp_path: Path, spark: SparkSession, partition_by: list[str] | None) -> None:
    chance = random.Random(7)
    moments = [datetime.fromtimestamp(chance.randrange(10**9), UTC) for _ in range(50)]
    rows = pa.table(
        {
            "id": pa.array(range(50), pa.int64()),
            "name": pa.array([chance.choice([None, "a b", "é/=%漢"]) for _ in range(50)]),
            "flag": pa.array([chance.choice([None, True, False]) for _ in range(50)]),
            "day": pa.array([moment.date() for moment in moments], pa.date32()),
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "list": pa.array([[1, None]] * 50, pa.list_(pa.int32())),
        }
    )
    path = str(tmp_path / "orders")
    write_deltalake(path, rows, partition_by=partition_by)
    source = TableSource(DeltaVersions(DeltaAddress(path)))
    columns = source.schema(spark).names
    (slice,) = taken(source)
    found = source.read(spark, slice).toArrow().sort_by("id")
    assert found.select(rows.schema.names).to_pylist() == rows.to_pylist()
    assert sorted(columns) == sorted(rows.schema.names)


@pytest.mark.parametrize("start", [True, -1, "newest", 1.5])
def test_other_starts_are_refused(start: Any) -> None:
    from epochal.connectors import delta

    with pytest.raises(OptionError, match="must be 'earliest', 'latest' or the number of a version"):
        delta.source("orders", start=start)
