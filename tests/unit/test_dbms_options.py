"""Options of database sinks and sources that are refused without a connection; messages name the sink and the fix."""

from __future__ import annotations

import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from epochal.backends.dbms.address import DatabaseAddress
from epochal.backends.dbms.failures import commit_outcome, translated
from epochal.connectors import dbms
from epochal.contracts.backend import SinkPlace
from epochal.errors import EpochalError, OptionError, SinkError
from epochal.secrets import secret

URL = "postgresql://epochal@db.example:5433/shop"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("postgresql://epochal:hunter2@db/shop", {}, "URL holds a password.*secret"),
        ("oracle://db/shop", {}, "does not support 'oracle'. Supported are postgresql, sqlite, mysql and mariadb"),
        ("postgres://db/shop", {}, "does not support 'postgres'.*Did you mean 'postgresql'"),
        ("postgresql+asyncpg://db/shop", {}, "uses the driver psycopg for postgresql, not asyncpg"),
        ("nonsense", {}, "URL cannot be read; write postgresql://"),
        ("postgresql://db", {}, "names no database"),
        ("sqlite://", {}, "an SQLite database must be a file"),
        ("sqlite:///:memory:", {}, "an SQLite database must be a file"),
        (URL, {"sslmod": "require"}, "no option 'sslmod' for postgresql. Did you mean 'sslmode'"),
        (f"{URL}?ssl_mode=require", {}, "no option 'ssl_mode'"),
        ("sqlite:////tmp/x", {"sslmode": "require"}, "no option 'sslmode' for sqlite"),
        (URL, {"key": "id"}, "no option 'key'. Did you mean 'keys'"),
        (URL, {"password": "hunter2"}, r"password must be a secret: password=secret\("),
        (URL, {"operation": "does"}, "operation requires keys"),
        (URL, {"order_by": "at"}, "order_by requires keys"),
        (URL, {"keys": "id", "keep_newer": False}, "keep_newer=False needs order_by"),
        (URL, {"keys": "id", "order_by": "at", "keep_newer": "no"}, "keep_newer is 'no'"),
        (URL, {"shards": 0}, "shards is 0"),
        (URL, {"shards": 1.5}, "shards is 1.5"),
        (URL, {"shard": 2}, "no option 'shard'. Did you mean 'shards'"),
        ("sqlite:////tmp/x", {"shards": 2}, "SQLite has one writer at a time"),
        (URL, {"keys": "id", "shards": 2, "delivery": "idempotent"}, "delivery='idempotent' tasks write"),
        (URL, {"shards": 2, "mode": "updates"}, "shards=2 with mode='updates' needs keys"),
    ],
)
def test_invalid_sink_options_are_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"dbms.sink.*{message}") as caught:
        dbms.sink(url, "flights", **options)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("table", ["", " ", ".flights", "public."])
def test_a_table_needs_a_name(table: str) -> None:
    with pytest.raises(OptionError, match=r"needs a table, 'flights' or with its schema 'public\.flights'"):
        dbms.sink(URL, table)


def test_two_phase_commit_requires_postgresql() -> None:
    with pytest.raises(
        OptionError, match=r"two_phase_sink supports only PostgreSQL, not sqlite:/tmp/x. Use dbms\.sink"
    ):
        dbms.two_phase_sink("sqlite:////tmp/x", "flights")


def test_two_phase_commit_has_no_shards() -> None:
    with pytest.raises(OptionError, match=r"two_phase_sink has no option 'shards': each of its subtasks already"):
        dbms.two_phase_sink(URL, "flights", shards=2)


def test_shards_are_described() -> None:
    assert dbms.sink(URL, "flights", keys="id", shards=3).description["shards"] == 3
    assert "shards" not in dbms.sink(URL, "flights", keys="id", shards=1).description


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": ""}, "requires an increasing column"),
        ({"column": "id", "partitions": 0}, "partitions is 0"),
        ({"column": "id", "settle_seconds": -1}, "settle_seconds is -1"),
        ({"column": "id", "colums": 1}, "no option 'colums'"),
    ],
)
def test_invalid_source_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"dbms.source.*{message}"):
        dbms.source(URL, "flights", **options)


def test_secrets_are_absent_from_definitions_and_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    definition = dbms.sink(URL, "public.flights", keys="id", password=secret("env:SHOP_PASSWORD"))
    backend = definition.make(SinkPlace("out"))
    assert backend.target == "dbms:postgresql://db.example:5433/shop/public.flights"
    assert definition.description == {
        "database": "postgresql://db.example:5433/shop",
        "table": "public.flights",
        "keys": ["id"],
    }
    for thing in (definition.description, definition.make.args, backend, backend.target):  # type: ignore[attr-defined]
        assert "hunter2" not in repr(thing)
        assert b"hunter2" not in pickle.dumps(thing)


def test_a_missing_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    backend = dbms.sink(URL, "flights", password=secret("env:SHOP_PASSWORD")).make(SinkPlace("out"))
    import pyarrow as pa

    with pytest.raises(EpochalError, match="environment variable SHOP_PASSWORD is not set"):
        backend.check(pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize("option", ["sslrootcert", "ssl_ca"])
def test_a_missing_certificate_authority_file_is_refused(option: str, tmp_path: Path) -> None:
    url = URL if option == "sslrootcert" else "mysql://epochal@db.example/shop"
    file = tmp_path / "authority.crt"
    address = DatabaseAddress.parse("dbms.sink", url, None, {option: str(file)})
    for connect in (address.engine, address.libpq):
        with pytest.raises(OptionError, match=f"{option} of a database names {file}, which does not exist"):
            connect()
    file.touch()
    address.engine().dispose()
    assert address.libpq()[option] == str(file)
    if option == "sslrootcert":
        DatabaseAddress.parse("dbms.sink", url, None, {option: "system"}).engine().dispose()


def test_user_and_default_port_do_not_change_the_target() -> None:
    targets = [
        dbms.sink(url, "t").make(SinkPlace("out")).target
        for url in ("postgresql://a@h/d", "postgresql+psycopg://b@h:5432/d?sslmode=disable", "mariadb://h/d")
    ]
    assert targets == ["dbms:postgresql://h:5432/d/t", "dbms:postgresql://h:5432/d/t", "dbms:mysql://h:3306/d/t"]


def test_a_full_disk_is_a_sink_error_with_a_known_outcome() -> None:
    address = DatabaseAddress.parse("dbms.sink", "sqlite:////data/shop.sqlite", None, {})
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE flights (id)")
    connection.execute("PRAGMA max_page_count = 2")
    sink = "Sink 'out'"
    with pytest.raises(SinkError) as raised, translated(sink, "commit epoch 4", address), commit_outcome(sink, address):
        connection.execute("INSERT INTO flights VALUES (zeroblob(100000))")
    assert type(raised.value) is SinkError
    assert "Sink 'out' could not commit epoch 4 at sqlite:/data/shop.sqlite: no space is left" in raised.value.message
