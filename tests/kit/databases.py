"""A sink's database in tests: construction of its backends, and the rows that any reader sees."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pytest
import sqlalchemy as sa

from epochal.backends.dbms import DatabaseAddress, DbmsBackend, Writing
from epochal.contracts.backend import SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.handle import Handle
from epochal.secrets import secret
from epochal.snapshots.manifest import Manifest, SinkHandles
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import SinkHarness
from epochal.testing.servers.process import LOOPBACK
from epochal.testing.servers.proxy import TcpProxy
from epochal.testing.sink_contract import APPLICATION, BRANCH
from tests.kit.manifests import plain_manifest

TABLE = "results"


class Closable(Protocol):
    def close(self) -> None: ...


Backend = TypeVar("Backend", bound=Closable)


class TestDatabase:
    """``url``: the test's own database, with its password. ``writing``: options of :class:`Writing`."""

    __test__ = False

    def __init__(self, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **writing: Any) -> None:
        self.url = sa.make_url(url)
        monkeypatch.setenv("TEST_DATABASE_PASSWORD", self.url.password or "")
        self.password = secret("env:TEST_DATABASE_PASSWORD") if self.url.password else None
        self.writing = Writing(TABLE, **{"create": True, **writing})
        self.store = SnapshotStore(str(folder / "store"))
        self.engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        self._made: list[Closable] = []

    @property
    def plain_url(self) -> str:
        """The URL without the password, as pipelines contain it."""
        return self.url._replace(password=None).render_as_string()

    @property
    def address(self) -> DatabaseAddress:
        return DatabaseAddress.parse("dbms.sink", self.plain_url, self.password, {})

    def visible(self) -> list[dict[str, Any]]:
        return self.rows(f"SELECT * FROM {TABLE}") if sa.inspect(self.engine).has_table(TABLE) else []

    def rows(self, query: str) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.text(query)).mappings()]

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def registered(self, backend: Backend) -> Backend:
        """Register ``backend`` so that its connections are closed with this database."""
        self._made.append(backend)
        return backend

    def end(self, backend: Any) -> None:
        backend.close()
        self._made.remove(backend)

    def close(self) -> None:
        for backend in self._made:
            backend.close()
        self.engine.dispose()


class DbmsDatabase(TestDatabase, SinkHarness):
    """A test database with ``dbms.sink`` on it, named ``out``."""

    __test__ = False
    delivery: Delivery = "exactly_once"

    def make(self, delivery: Delivery | None = None) -> DbmsBackend:
        place = SinkPlace("out", self.store, delivery or self.delivery)
        return self.registered(DbmsBackend(place, self.address, self.writing))

    def leftovers(self) -> list[str]:
        return [path for path in self.store.list("") if "/logs/" in path]


class ThroughProxy(TestDatabase):
    """A test database whose backends connect through a proxy; the test connects directly."""

    __test__ = False
    proxy: TcpProxy

    @property
    def plain_url(self) -> str:
        return self.url._replace(password=None, host=LOOPBACK, port=self.proxy.port).render_as_string()


class DbmsThroughProxy(ThroughProxy, DbmsDatabase):
    __test__ = False


def manifest(number: int, target: str | None = None, handles: tuple[Handle, ...] = ()) -> Manifest:
    """Return the manifest of an epoch of the shipped suite's application. ``target``: the target of sink ``out``, if
    any."""
    return plain_manifest(
        number,
        application=APPLICATION,
        branch=BRANCH,
        sinks={"out": SinkHandles(kind="dbms", target=target, handles=handles)} if target else {},
    )


class OrderedChanges:
    """Random upserts and deletes that arrive out of order, and the expected contents of a table of the newest rows.

    Order values repeat and can be null. ``kind``: their type in the stream.
    """

    writing: dict[str, Any] = {"keys": ("id",), "operation": "does", "order_by": "at"}  # noqa: RUF012

    def __init__(self, kind: pa.DataType, chance: Random, deletes: bool = True) -> None:
        self.schema = pa.schema(
            [("does", pa.string()), ("id", pa.int64()), ("name", pa.string()), pa.field("at", kind)]
        )
        self._orders = [None, *_ORDERS[str(kind)]]
        self._chance = chance
        self._does = ["upsert", "upsert", "delete"] if deletes else ["upsert"]
        self._made = 0
        self.newest: dict[int, tuple[Any, str]] = {}

    def batch(self) -> pa.RecordBatch:
        """Return the rows of the next epoch."""
        given = [self._row() for _ in range(self._chance.randint(1, 6))]
        last: dict[int, dict[str, Any]] = {}
        for row in given:
            if row["id"] not in last or not _newer(last[row["id"]]["at"], row["at"]):
                last[row["id"]] = row
        for id, row in last.items():
            if id in self.newest and _newer(self.newest[id][0], row["at"]):
                continue
            self.newest.pop(id, None)
            if row["does"] == "upsert":
                self.newest[id] = row["at"], row["name"]
        return pa.RecordBatch.from_pylist(given, schema=self.schema)

    def _row(self) -> dict[str, Any]:
        self._made += 1
        does, at = self._chance.choice(self._does), self._chance.choice(self._orders)
        return {"does": does, "id": self._chance.randint(0, 3), "name": f"{self._made}", "at": at}


_ORDERS: dict[str, list[Any]] = {
    "int64": [-(2**62), 9, 10, 2**62],
    "string": ["", "A", "B", "a", "b", "b ", "z", "\u00e9", "\U0001f600"],
    "timestamp[us, tz=UTC]": [datetime(2024, 1, 2, 3, 4, second, 6, UTC) for second in range(4)],
    "decimal128(20, 2)": [Decimal("-1.50"), Decimal("9.99"), Decimal("10.00"), Decimal("10.01")],
}


def _newer(stored: Any, new: Any) -> bool:
    """Check whether a stored row must stay. Null is older than every value; of equal values the later arrival wins."""
    if isinstance(stored, str) and isinstance(new, str):
        return stored.encode() > new.encode()
    return stored is not None and (new is None or stored > new)
