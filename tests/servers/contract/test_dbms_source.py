"""Tables as sources: slices of an increasing column are repeatable, and no row is skipped silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.connectors import dbms
from epochal.connectors.dbms.table_source import DbmsSource
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.failures import failure_of
from epochal.errors import SchemaError, SourceChanged, SourceError
from epochal.secrets import Secret, secret
from tests.kit.databases import DbmsDatabase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

NO_LIMIT = SliceLimits(max_records=None)
NewDatabase = Callable[..., DbmsDatabase]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DbmsDatabase]:
    database = DbmsDatabase(url, tmp_path, monkeypatch)
    collation = ' COLLATE "C"' if database.address.dialect == "postgresql" else ""
    database.run(f"CREATE TABLE orders (id bigint primary key, item varchar(20){collation})")
    yield database
    database.close()


def add(database: DbmsDatabase, *ids: int) -> None:
    database.run(*(f"INSERT INTO orders VALUES ({id}, 'item {id}')" for id in ids))


def password_file(database: DbmsDatabase, tmp_path: Path) -> Secret | None:
    """Executors were started before the test, so they cannot read its environment, only files."""
    path = tmp_path / "password"
    path.write_text(database.url.password or "")
    return secret(f"file:{path}") if database.url.password else None


@pytest.fixture
def make(database: DbmsDatabase, tmp_path: Path) -> Callable[..., DbmsSource]:
    def make(column: str = "id", table: str = "orders", **options: Any) -> DbmsSource:
        given = {"password": password_file(database, tmp_path), "settle_seconds": 0, **options}
        source = dbms.source(database.plain_url, table, column, **given).make()
        assert isinstance(source, DbmsSource)
        return source

    return make


def take(source: DbmsSource, limits: SliceLimits = NO_LIMIT) -> Slice | None:
    slice = source.plan(limits)
    if slice is not None:
        source.accept(slice)
    return slice


def read(source: DbmsSource, spark: SparkSession, slice: Slice | None) -> list[int]:
    assert slice is not None
    return [row.id for row in source.read(spark, slice).collect()]


class TestSlices:
    def test_slices_are_consecutive_and_repeatable(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource], spark: SparkSession
    ) -> None:
        source = make()
        assert source.plan(NO_LIMIT) is None
        add(database, 1, 2, 5)
        first = take(source)
        assert source.plan(NO_LIMIT) is None
        add(database, 7, 9)
        second = take(source)
        assert first is not None
        assert second is not None
        assert (first.start, first.end, first.rows) == ({"value": None}, {"value": 5}, 3)
        assert (second.start, second.end, second.rows) == ({"value": 5}, {"value": 9}, 2)
        assert [read(source, spark, slice) for slice in (first, second, first)] == [[1, 2, 5], [7, 9], [1, 2, 5]]
        assert source.schema(spark).simpleString() == "struct<id:bigint,item:string>"

    def test_slices_respect_the_limit(self, database: DbmsDatabase, make: Callable[..., DbmsSource]) -> None:
        source = make()
        add(database, *range(10, 20))
        slices = [take(source, SliceLimits(max_records=4)) for _ in range(4)]
        assert [slice.rows for slice in slices if slice] == [4, 4, 2]
        assert slices[-1] is None

    def test_slices_end_at_punctuation_rows_despite_the_limit(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource], spark: SparkSession
    ) -> None:
        source, limit = make(punctuation="item LIKE '%0' OR id = 17"), SliceLimits(max_records=2)
        add(database, *range(1, 10))
        assert source.plan(limit) is None
        add(database, *range(10, 20))
        slices = [take(source, limit) for _ in range(3)]
        assert [(slice.end["value"], slice.rows) for slice in slices if slice] == [(10, 10), (17, 7)]
        assert slices[-1] is None
        assert read(source, spark, slices[1]) == list(range(11, 18))
        rest = make(punctuation="id = 17", bounded=True)
        rest.limit_to_bounds()
        assert [slice.end["value"] for slice in (take(rest), take(rest)) if slice] == [17, 19]
        with pytest.raises(SchemaError, match="punctuation 'colour = 1' is not a valid condition on its columns"):
            make(punctuation="colour = 1").schema(spark)

    def test_available_rows_end_after_they_have_settled(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource]
    ) -> None:
        clock = Clock()
        source = make(settle_seconds=2)
        source._clock = clock
        add(database, 1, 2, 5)
        source.limit_to_available()
        add(database, 3, 7)
        assert take(source) is None
        assert not source.ended
        clock.now += 2
        slices = [take(source, SliceLimits(max_records=3)) for _ in range(3)]
        assert [slice.end["value"] for slice in slices if slice] == [3, 5]
        assert source.ended

    def test_bounded_source_ends_with_the_rows_present_at_its_start(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource], spark: SparkSession
    ) -> None:
        source = make(bounded=True)
        add(database, 1, 2, 5)
        source.limit_to_bounds()
        add(database, 7)
        slices = [take(source, SliceLimits(max_records=2)) for _ in range(3)]
        assert [read(source, spark, slice) for slice in slices[:2]] == [[1, 2], [5]]
        assert (slices[2], source.bounded, source.ended) == (None, True, True)
        endless = make()
        endless.restore(source.checkpoint(), [])
        endless.limit_to_bounds()
        assert [slice.end["value"] for slice in (take(endless), take(endless)) if slice] == [7]
        assert (endless.bounded, endless.ended) == (False, False)

    def test_bounded_source_of_an_empty_table_ends_immediately(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource]
    ) -> None:
        source = make(bounded=True)
        source.limit_to_bounds()
        add(database, 1)
        assert (take(source), source.ended) == (None, True)

    def test_available_rows_of_an_empty_table_end_immediately(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource]
    ) -> None:
        source = make()
        source.limit_to_available()
        add(database, 1)
        assert take(source) is None
        assert source.ended

    def test_slices_continue_after_a_restart(self, database: DbmsDatabase, make: Callable[..., DbmsSource]) -> None:
        before = make()
        add(database, 1, 2)
        first = take(before)
        checkpoint = before.checkpoint()
        add(database, 3)
        second = take(before)
        assert first is not None
        assert second is not None
        restored = make(), make()
        restored[0].restore(None, [first, second])
        restored[1].restore(checkpoint, [second])
        assert [source.plan(NO_LIMIT) for source in restored] == [None, None]
        add(database, 4)
        assert [slice.start for source in restored if (slice := source.plan(NO_LIMIT))] == [{"value": 3}] * 2

    def test_values_are_read_after_they_have_settled(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource]
    ) -> None:
        """A writer with sequence number 4 commits after the writer with 5, within settle_seconds; no row is lost."""
        source, clock = make(settle_seconds=2.0), Clock()
        source._clock = clock
        add(database, 3, 5)
        assert source.plan(NO_LIMIT) is None
        clock.now += 1
        add(database, 4)
        assert source.plan(NO_LIMIT) is None
        clock.now += 1
        add(database, 6)
        slice = source.plan(NO_LIMIT)
        assert slice is not None
        assert (slice.end, slice.rows) == ({"value": 5}, 3)

    def test_large_slices_are_read_by_several_tasks(
        self,
        database: DbmsDatabase,
        make: Callable[..., DbmsSource],
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("epochal.connectors.dbms.table_source.SMALL_SLICE_ROWS", 10)
        source = make(partitions=3)
        ids = [*range(100, 140), 1000]
        add(database, *ids)
        slice = take(source)
        assert slice is not None
        assert [range["rows"] for range in slice.detail["ranges"]] == [40, 1]
        assert sorted(read(source, spark, slice)) == ids


class TestChangedRows:
    def test_row_inserted_behind_the_slice_is_an_error(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource]
    ) -> None:
        source = make()
        add(database, 1, 3)
        take(source)
        add(database, 2)
        with pytest.raises(SourceChanged, match=r"Table orders at .* has 3 rows with id up to 3; its slice recorded 2"):
            source.plan(NO_LIMIT)

    def test_deleted_row_of_a_slice_is_an_error(
        self, database: DbmsDatabase, make: Callable[..., DbmsSource], spark: SparkSession
    ) -> None:
        source = make()
        add(database, 1, 2, 3)
        slice = take(source)
        assert slice is not None
        database.run("DELETE FROM orders WHERE id = 2")
        with pytest.raises(Exception, match="SourceChanged") as caught:
            source.read(spark, slice).collect()
        failure = failure_of(caught.value)
        assert failure.type == "source-changed"
        assert "has 2 rows with id up to 3; its slice recorded 3" in failure.message


class TestColumns:
    @pytest.mark.parametrize(
        ("type", "values", "last"),
        [
            ("numeric(12,3)", ["1.5", "2.25"], "2.250"),
            ("timestamp", ["'2024-01-02 03:04:05'", "'2024-01-02 03:04:06'"], "2024-01-02T03:04:06"),
            ("date", ["'2024-02-28'", "'2024-02-29'"], "2024-02-29"),
        ],
    )
    def test_slicing_column_can_be_a_decimal_timestamp_or_date(
        self,
        database: DbmsDatabase,
        make: Callable[..., DbmsSource],
        spark: SparkSession,
        type: str,
        values: list[str],
        last: str,
    ) -> None:
        type = "datetime" if type == "timestamp" and database.url.get_backend_name() == "mysql" else type
        database.run(f"CREATE TABLE readings (at {type}, id bigint)")
        database.run(*(f"INSERT INTO readings VALUES ({value}, {number})" for number, value in enumerate(values)))
        source = make("at", "readings")
        slice = take(source)
        assert slice is not None
        assert slice.end["value"].startswith(last[:10])
        decoded = Slice.model_validate_json(slice.model_dump_json())
        assert sorted(row.id for row in source.read(spark, decoded).collect()) == [0, 1]

    def test_unsuitable_columns_and_tables_are_rejected(
        self, make: Callable[..., DbmsSource], spark: SparkSession
    ) -> None:
        with pytest.raises(SourceError, match=r"Column 'item' is varchar\(20\).*whole number, a decimal"):
            make("item").plan(NO_LIMIT)
        with pytest.raises(SchemaError, match=r"has no column 'idd'. Did you mean 'id'"):
            make("idd").schema(spark)
        with pytest.raises(SchemaError, match=r"has no column 'itm'. Did you mean 'item'"):
            make(columns=["itm"]).schema(spark)
        with pytest.raises(SourceError, match=r"Table order at .* does not exist"):
            make(table="order").schema(spark)


class TestTable:
    def test_table_reads_every_type(self, database: DbmsDatabase, spark: SparkSession, tmp_path: Path) -> None:
        moment = "timestamp with time zone" if database.url.get_backend_name() == "postgresql" else "datetime"
        database.run(
            f"CREATE TABLE kinds (id bigint, small smallint, yes boolean, price numeric(8,2), x double precision, "
            f"day date, moment {moment}, words text)",
            "INSERT INTO kinds VALUES (1, 2, true, 3.25, 0.5, '2024-02-29', '2024-02-29 12:00:00', 'é')",
            "INSERT INTO kinds (id) VALUES (2)",
        )
        password = password_file(database, tmp_path)
        frame = dbms.table(database.plain_url, "kinds", password=password).read(spark)
        full, empty = frame.orderBy("id").collect()
        assert tuple(full)[:6] == (1, 2, True, Decimal("3.25"), 0.5, date(2024, 2, 29))
        assert full.moment.replace(tzinfo=UTC) == datetime(2024, 2, 29, 12, tzinfo=UTC)
        assert full.words == "é"
        assert tuple(empty) == (2, *[None] * 7)
        few = dbms.table(database.plain_url, "kinds", columns=["words", "id"], password=password).read(spark)
        assert few.columns == ["words", "id"]
        with pytest.raises(SourceError, match=r"has more than 1 rows.*max_rows"):
            dbms.table(database.plain_url, "kinds", max_rows=1, password=password).read(spark)
        with pytest.raises(SourceError, match=r"Table kind at .* does not exist"):
            dbms.table(database.plain_url, "kind", password=password).read(spark)
