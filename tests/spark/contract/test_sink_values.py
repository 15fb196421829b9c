"""Values are read back unchanged, by Epochal's own sources and by an independent reader."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Context, Decimal
from math import copysign, isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from epochal.backends.dbms import DbmsBackend
from epochal.backends.file_formats import WRITERS
from epochal.connectors.dbms.reading import Reading
from epochal.connectors.file_partitions import Partitioning
from epochal.connectors.file_reading import Frames, checked_reader
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import SinkError
from epochal.testing.sink_contract import APPLICATION, BRANCH, epoch
from tests.kit.databases import TABLE, DbmsDatabase

AT_START = EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None)
ROWS = 300
TEXTS = (
    "",
    " a ",
    'a"b',
    '"',
    '""',
    "\\",
    "a\\",
    '\\"',
    'a\\"b',
    "a,b",
    "é漢🎉",
    "\t",
    "\x01",
    "NULL",
    "\\N",
    "#",
    "'",
    "\x7f",
)


def values(seed: int) -> pa.Table:
    """Edge values of each type, nulls, and random values."""
    chance = random.Random(seed)

    def floats(bits: int) -> list[float]:
        most = 3.4028234663852886e38 if bits == 32 else 1.7976931348623157e308
        least = 1e-45 if bits == 32 else 5e-324
        edges = [0.0, -0.0, most, -most, least, 1e16, 0.1, float("nan"), float("inf"), float("-inf")]
        return edges + [chance.uniform(-1, 1) * 10 ** chance.randint(-30, 30) for _ in range(ROWS)]

    def decimals(precision: int, scale: int) -> list[Decimal]:
        numbers = [0, 1, -1, 10**precision - 1, -(10**precision) + 1]
        numbers += [chance.randrange(-(10**precision) + 1, 10**precision) for _ in range(ROWS)]
        return [Decimal(number).scaleb(-scale, Context(prec=76)) for number in numbers]

    def whole(bits: int) -> list[int]:
        return [0, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), *(chance.getrandbits(bits - 1) for _ in range(ROWS))]

    def moments() -> list[datetime]:
        edges = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1582, 10, 10, 3)]  # noqa: DTZ001
        return edges + [datetime.fromtimestamp(chance.randrange(2**32), UTC).replace(tzinfo=None) for _ in range(ROWS)]

    def texts() -> list[str]:
        return [*TEXTS, *("".join(chance.choices('ab"\\, é漢;', k=chance.randrange(9))) for _ in range(ROWS))]

    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "flag": ([True, False], pa.bool_()),
        "small": (whole(16), pa.int16()),
        "number": (whole(32), pa.int32()),
        "big": (whole(64), pa.int64()),
        "single": (floats(32), pa.float32()),
        "double": (floats(64), pa.float64()),
        "money": (decimals(38, 2), pa.decimal128(38, 2)),
        "fraction": (decimals(38, 10), pa.decimal128(38, 10)),
        "price": (decimals(9, 2), pa.decimal128(9, 2)),
        "text": (texts(), pa.string()),
        "day": ([moment.date() for moment in moments()], pa.date32()),
        "at": ([moment.replace(tzinfo=UTC) for moment in moments()], pa.timestamp("us", "UTC")),
        "local": (moments(), pa.timestamp("us")),
        "bytes": ([b"", b"\0\xff", chance.randbytes(9)], pa.binary()),
    }
    arrays = {"id": pa.array(range(ROWS), pa.int64())}
    for name, (found, type) in columns.items():
        chosen = [*found, None][:ROWS]
        arrays[name] = pa.array(chosen + [chance.choice(found) for _ in range(ROWS - len(chosen))], type)
    return pa.table(arrays)


def pre_commit(backend: DbmsBackend, at: EpochScope, rows: pa.RecordBatch) -> Handle:
    transaction = backend.start(TaskScope(at, "out", 0))
    transaction.write(rows)
    return transaction.pre_commit()


def check_equal(written: pa.Table, read: pa.Table) -> None:
    """The values are equal row by row, including the sign of zero. NaN equals NaN."""
    for name in written.column_names:
        type = written[name].type
        both = zip(written[name].to_pylist(), read[name].cast(type).to_pylist(), strict=True)
        wrong = [(before, after) for before, after in both if not _same(before, after)]
        assert not wrong, f"{name}: {wrong[:3]}"


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        return (isnan(before) and isnan(after)) or (before == after and copysign(1, before) == copysign(1, after))
    return bool(before == after)


SCHEMA = (
    "id long, flag boolean, small short, number int, big long, single float, double double, money decimal(38,2), "
    "fraction decimal(38,10), price decimal(9,2), text string, day date, at timestamp, local timestamp_ntz"
)
NULL = {"nullValue": "\ue000"}
"""Otherwise Spark and Epochal read empty text in CSV as null."""


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_files_are_read_back_unchanged(spark: SparkSession, tmp_path: Path, format: str) -> None:
    rows = values(1)
    schema = SCHEMA if format == "csv" else f"{SCHEMA}, bytes binary"
    rows = rows.drop_columns(["bytes"]) if format == "csv" else rows
    path = tmp_path / f"rows.{format}"
    with path.open("wb") as file:
        writer = WRITERS[format](file, rows.schema)
        for batch in rows.to_batches(max_chunksize=70):
            writer.write(batch)
        writer.finish()
    options = {"header": "true", **NULL} if format == "csv" else {}
    by_spark = spark.read.schema(schema).options(**options).format(format).load(str(path))
    check_equal(rows, by_spark.orderBy("id").toArrow())
    reader = checked_reader("files.source", format, schema, "fail", options, ())  # type: ignore[arg-type]
    columns = spark.createDataFrame([], schema).schema
    frames = Frames(reader, spark, columns, Partitioning.of(str(path), reader.declared))
    found = frames.of([str(path)])
    check_equal(rows, found.orderBy("id").toArrow())


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_tables_are_read_back_unchanged(database: DbmsDatabase) -> None:
    dialect = database.url.get_backend_name()
    rows = values(2)
    if dialect != "postgresql":
        finite = [value is None or abs(value) < float("inf") for value in rows["double"].to_pylist()]
        finite_too = [value is None or abs(value) < float("inf") for value in rows["single"].to_pylist()]
        rows = rows.filter(pa.array([one and other for one, other in zip(finite, finite_too, strict=True)]))
    if dialect != "postgresql":  # the others store -0.0 as 0.0
        for name in ("single", "double"):
            plain = [None if value is None else value + 0.0 for value in rows[name].to_pylist()]
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(plain, rows[name].type))
    backend = database.make()
    backend.check(rows.schema)
    backend.recover(AT_START)
    backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows.combine_chunks().to_batches()[0])])
    reading = Reading(database.address, TABLE)
    with database.engine.connect() as connection:
        table = reading.reflect(connection)
        found = pa.Table.from_batches(
            reading.batches(connection, sa.select(*reading.chosen(table)).order_by(table.c.id), reading.schema(table))
        )
    check_equal(rows, found)
    as_text = "CHAR(60)" if dialect == "mysql" else "TEXT"
    independent = database.rows(f"SELECT id, CAST(money AS {as_text}) AS money FROM {TABLE} ORDER BY id")
    written = [None if value is None else format(value, "f") for value in rows["money"].to_pylist()]
    assert [row["money"] for row in independent] == written


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    url = f"sqlite:///{tmp_path / 'out.sqlite'}"
    if request.param != "sqlite":
        url = str(request.getfixturevalue(f"{request.param}_url"))
    made = DbmsDatabase(url, tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("format", ["json", "csv"])
def test_invalid_utf8_is_refused_with_its_row_and_column(tmp_path: Path, format: str) -> None:
    other = pa.Array.from_buffers(pa.string(), 2, pa.array([b"good", b"\xed\xa0\x80"]).buffers())
    rows = pa.record_batch({"id": [7, 8], "name": other})
    with (
        (tmp_path / "rows").open("wb") as file,
        pytest.raises(SinkError, match=r"Row id=8, .*column 'name'.*not UTF-8"),
    ):
        WRITERS[format](file, rows.schema).write(rows)


def test_csv_refuses_line_breaks(tmp_path: Path) -> None:
    """Readers would interpret them as the end of a row."""
    rows = pa.record_batch({"id": [7, 8], "name": ["good", "two\nlines"]})
    with (
        (tmp_path / "rows").open("wb") as file,
        pytest.raises(SinkError, match=r"Row id=8, .*column 'name'.*line break"),
    ):
        WRITERS["csv"](file, rows.schema).write(rows)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("table", "value", "message"),
    [
        ("v double", pa.array([1.0, float("nan")]), "'v' holds NaN, which SQLite stores as null"),
        (
            "v numeric(38, 2)",
            pa.array([Decimal("1.00"), Decimal("1234567890123456.78")], pa.decimal128(38, 2)),
            "15 digits",
        ),
        ("v json", pa.array(["{}", "{"]), "'v' is JSON, and the value is not"),
        ("v date", pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()), "holds the years 1 to 9999"),
        (
            "v text",
            pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers()),
            "'v' holds text that is not UTF-8",
        ),
    ],
)
def test_values_that_sqlite_would_change_are_refused(
    database: DbmsDatabase, table: str, value: pa.Array, message: str
) -> None:
    database.run(f"CREATE TABLE {TABLE} (id bigint primary key, {table})")
    backend = database.make()
    rows = pa.record_batch({"id": [7, 8], "v": value})
    backend.check(rows.schema)
    backend.recover(AT_START)
    with pytest.raises(SinkError, match=f"Row id=8.*{message}"):
        pre_commit(backend, epoch(1), rows)
    backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows.slice(0, 1))])
    assert [row["id"] for row in database.visible()] == [7]
