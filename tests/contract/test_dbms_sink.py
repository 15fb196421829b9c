"""The DBMS sink keeps the contract of sinks, on every database that can be had; and what only it promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from epochal.backends.dbms import DatabaseAddress, DbmsBackend, Writing
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.secrets import secret
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import SinkBackendContract, SinkHarness

TABLE = "out"


class Database(SinkHarness):
    """A table in a database of its own, read through SQLAlchemy; ``url`` is a test's, with its password."""

    def __init__(self, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **writing: Any) -> None:
        self.url = sa.make_url(url)
        monkeypatch.setenv("TEST_DATABASE_PASSWORD", self.url.password or "")
        self.password = secret("env:TEST_DATABASE_PASSWORD") if self.url.password else None
        self.writing = Writing(TABLE, **{"create": True, **writing})
        self.store = SnapshotStore(str(folder / "store"))
        self.engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        self._made: list[DbmsBackend] = []

    @property
    def address(self) -> DatabaseAddress:
        plain = self.url._replace(password=None).render_as_string()
        return DatabaseAddress.parse("dbms.sink", plain, self.password, {})

    def make(self) -> DbmsBackend:
        self._made.append(DbmsBackend(SinkPlace("out", self.store), self.address, self.writing))
        return self._made[-1]

    def visible(self) -> list[dict[str, Any]]:
        if not sa.inspect(self.engine).has_table(TABLE):
            return []
        return self.rows(f"SELECT * FROM {TABLE} ORDER BY 1")

    def leftovers(self) -> list[str]:
        return [path for path in self.store.list("") if "/logs/" in path]

    def rows(self, query: str) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(sa.text(query)).mappings()]

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def close(self) -> None:
        for backend in self._made:
            backend.close()
        self.engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql_url"))
    return f"sqlite:///{tmp_path / 'out.sqlite'}"


class TestDbmsSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinkHarness]:
        database = Database(database_url, tmp_path, monkeypatch)
        yield database
        database.close()
