"""Step T2 refuses exactly the values that the database's types refuse, and names the row and the column."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from epochal.backends.dbms import values
from epochal.backends.dbms.column_types import ColumnType
from epochal.backends.dbms.target import Target, TargetColumn
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import RowRefused, SinkError
from epochal.testing.sink_contract import APPLICATION, BRANCH, epoch
from tests.kit.databases import TABLE, DbmsDatabase

AT_START = EpochScope(APPLICATION, EpochKey(BRANCH, 0), 1, None)
COLUMNS = {
    "binary_json": "jsonb",
    "json_text": "json",
    "token": "uuid",
    "mood": "mood",
    "short": "varchar(3)",
    "plain": "text",
}
JSON = (
    *('{"a": 1}', "[]", '""', " 1 ", "null", "true", "1e5", "-0", '"\\u00e9"', '"\\\\u0000"', '{"a":1,"a":2}', "1E+12"),
    *('"\\u0000"', '{"\\u0000":1}', '["\\\\\\u0000"]', '"\\ud800"', '"\\ud83c\\udf89"', '"\\udf89\\ud83c"', "NaN"),
    *(
        "Infinity",
        "-Infinity",
        "",
        " ",
        "{",
        "{'a':1}",
        "[1,]",
        "01",
        "1.",
        ".5",
        "+1",
        "nul",
        '"\t"',
        '"a',
        "1 2",
        "1,2",
    ),
    *("1e400", "1e131072", "1e-16384", "1e99999999", '"\\x"', "[" * 500 + "]" * 500, "9" * 5000, "\ufeff1", "\u00a01"),
)
UUIDS = (
    *(
        "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "6F9619FF8B86D011B42D00C04FC964FF",
        "{6f9619ff-8b86-d011-b42d-00c04fc964ff}",
    ),
    *(
        "6f96-19ff-8b86-d011-b42d-00c0-4fc9-64ff",
        "{6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "6f9619ff-8b86-d011-b42d",
        "",
        "x",
    ),
    *(
        "6f9619ff--8b86-d011-b42d-00c04fc964ff",
        "6f9619ff-8b86-d011-b42d-00c04fc964fg",
        " 6f9619ff-8b86-d011-b42d-00c04fc964ff",
    ),
)
OTHERS = ("ok", "sad", "Ok", "ok ", "", "abc", "abcd", "é漢字", "é漢字x", "a\0")


@pytest.fixture
def database(postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    database = DbmsDatabase(postgresql_url, tmp_path, monkeypatch, create=False)
    database.run("CREATE TYPE mood AS ENUM ('ok', 'sad')")
    yield database
    database.close()


def started(database: DbmsDatabase, schema: pa.Schema) -> Any:
    backend = database.make()
    backend.check(schema)
    backend.recover(AT_START)
    return backend


def pre_commit(backend: Any, at: EpochScope, rows: pa.RecordBatch) -> Any:
    transaction = backend.start(TaskScope(at, "out", 0))
    transaction.write(rows)
    return transaction.pre_commit()


def texts() -> list[str]:
    """The examples and JSON with random errors."""
    chance = random.Random(29)
    found = [*JSON, *UUIDS, *OTHERS]
    for _ in range(400):
        text = list(chance.choice([text for text in JSON if len(text) < 100]) or "1")
        text[chance.randrange(len(text))] = chance.choice('\\"u0d8{}[]:, 1eE+-.\x01nN')
        found.append("".join(text))
    return found


@pytest.mark.server
def test_t2_refuses_the_same_values_as_postgresql_types(database: DbmsDatabase) -> None:
    columns = ", ".join(f"{name} {type}" for name, type in COLUMNS.items())
    database.run(f"CREATE TABLE {TABLE} (id bigint primary key, {columns})")
    backend = started(database, pa.schema([("id", pa.int64()), *((name, pa.string()) for name in COLUMNS)]))
    target = backend._access.target
    wrong = []
    with psycopg.connect(**database.address.libpq(), autocommit=True) as session:
        for column, type in COLUMNS.items():
            for number, text in enumerate(texts()):
                rows = pa.table({"id": [number], column: pa.array([text], pa.string())})
                by_server, by_check = (
                    _refused_by_postgresql(session, type, text),
                    _refused_by_check(rows, target, column),
                )
                if by_server != by_check:
                    wrong.append((column, text[:60], by_server, by_check))
    assert not wrong, wrong


def _refused_by_postgresql(session: psycopg.Connection[Any], type: str, text: str) -> bool:
    """Check whether COPY, which the sink uses, refuses the value."""
    quoted = text.replace('"', '""')
    try:
        session.execute("BEGIN")
        session.execute(f"CREATE TEMPORARY TABLE tried (v {type}) ON COMMIT DROP")  # type: ignore[arg-type]
        with session.cursor() as cursor, cursor.copy("COPY tried FROM STDIN (FORMAT csv)") as copy:
            copy.write(f'"{quoted}"\n')
    except psycopg.DataError:
        return True
    except psycopg.errors.StatementTooComplex:
        return True
    finally:
        session.execute("ROLLBACK")
    return False


def _refused_by_check(rows: pa.Table, target: Target, column: str) -> bool:
    message = ""
    try:
        values.check(rows, target, ("id",), "postgresql")
    except SinkError as error:
        message = error.message
    assert not message or (f"Row id={rows['id'][0]} " in message and f"'{column}'" in message)
    return bool(message)


@pytest.mark.server
def test_zero_characters_are_refused_in_jsonb_but_not_in_json(database: DbmsDatabase) -> None:
    database.run(f"CREATE TABLE {TABLE} (id bigint primary key, v jsonb, w json)")
    type = pa.struct([("names", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.int32()))])
    zero = [{"names": ["a", "b\0"], "by": []}, {"names": [], "by": [("\0", 1)]}]
    fine = {"names": ["\\u0000", '"', "é"], "by": [("k", 2)]}
    schema = pa.schema([("id", pa.int64()), ("v", type), ("w", type)])
    backend = started(database, schema)
    for value in zero:
        rows = pa.RecordBatch.from_pylist([{"id": 7, "v": fine, "w": value}, {"id": 8, "v": value}], schema=schema)
        with pytest.raises(SinkError, match=r"Row id=8, .* does not fit the table: 'v' is jsonb, .*zero character"):
            pre_commit(backend, epoch(1), rows)
    backend.commit(epoch(1), [pre_commit(backend, epoch(1), rows.slice(0, 1))])
    assert database.rows(f"SELECT v->'names'->>0 AS v FROM {TABLE}") == [{"v": "\\u0000"}]


@pytest.mark.server
@pytest.mark.parametrize("keys", [(), ("id",)])
@pytest.mark.parametrize(
    ("rule", "state", "detail"),
    [
        ("CHECK (v < 100)", "23514", "constraint results_v_check"),
        ("UNIQUE (v)", "23505", "column v, constraint results_v_key"),
        ("FOREIGN KEY (v) REFERENCES known DEFERRABLE INITIALLY DEFERRED", "23503", "column v"),
        (None, "P0001", "no such value"),
    ],
)
def test_row_refused_at_the_commit_is_named_with_sqlstate_and_column(
    database: DbmsDatabase, keys: tuple[str, ...], rule: str | None, state: str, detail: str
) -> None:
    database.run("CREATE TABLE known (v bigint primary key)", "INSERT INTO known SELECT generate_series(0, 143)")
    database.run(f"CREATE TABLE {TABLE} (id bigint primary key, v bigint{', ' + rule if rule else ''})")
    if rule is None:
        database.run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.v = 144 THEN RAISE EXCEPTION 'no such value'; END IF; RETURN NEW; END $$",
            f"CREATE TRIGGER refusing BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
    if "UNIQUE" in (rule or ""):
        database.run(f"INSERT INTO {TABLE} VALUES (-1, 144)")
    database.writing = type(database.writing)(TABLE, keys=keys)
    backend = started(database, pa.schema([("id", pa.int64()), ("v", pa.int64())]))
    numbers = [*range(50), 144, *range(50, 90)]
    rows = pa.record_batch({"id": pa.array(range(len(numbers)), pa.int64()), "v": pa.array(numbers, pa.int64())})
    handle = pre_commit(backend, epoch(1), rows)
    before = database.visible()
    with pytest.raises(RowRefused) as refused:
        backend.commit(epoch(1), [handle])
    assert f"row id=50{', v=144' if not keys else ''}: " in refused.value.message
    assert f"SQLSTATE {state}" in refused.value.message and detail in refused.value.message
    assert database.visible() == before
    backend.commit(epoch(1), ())
    assert database.visible() == before


def target_of(type: ColumnType) -> Target:
    columns = (TargetColumn("id", ColumnType("integer", "bigint", 64), True, False, False),)
    return Target("t", (*columns, TargetColumn("v", type, True, False, False)), ())


def _times(*moments: datetime) -> pa.Array:
    return pa.array(moments, pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("type", "good", "bad", "message"),
    [
        (ColumnType("timestamp", "datetime", digits=0), _times(datetime(2026, 5, 1, tzinfo=UTC)),
         _times(datetime(2026, 5, 1, 0, 0, 0, 1, tzinfo=UTC)), "0 decimals of a second"),
        (ColumnType("instant", "timestamp", digits=6, narrow=True), _times(datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)),
         _times(datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)), "2038-01-19"),
        (ColumnType("integer", "bigint unsigned", 64, unsigned=True), pa.array([0]), pa.array([-1]), "negative"),
        (ColumnType("float", "double", 64), pa.array([1.5]), pa.array([float("-inf")]), "MySQL cannot store"),
        (ColumnType("text", "tinytext", bytes=255), pa.array(["é" * 127]), pa.array(["é" * 128]), "longer"),
        (ColumnType("binary", "varbinary(2)", bytes=2), pa.array([b"ab"]), pa.array([b"abc"]), "longer"),
        (ColumnType("text", "enum", labels=("a", "b")), pa.array(["b"]), pa.array(["c"]), "is one of a, b"),
    ],
)  # fmt: skip
def test_values_that_mysql_would_refuse_or_change_are_refused(
    type: ColumnType, good: pa.Array, bad: pa.Array, message: str
) -> None:
    values.check(pa.table({"id": [1], "v": good}), target_of(type), (), "mysql")
    rows = pa.table({"id": [1, 2], "v": pa.concat_arrays([good, bad])})
    with pytest.raises(SinkError, match=f"Row id=2.*'v' .*{message}"):
        values.check(rows, target_of(type), (), "mysql")
