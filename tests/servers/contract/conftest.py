"""Fixtures: databases of each kind with the DBMS sink, and a proxy before PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.testing.servers.postgresql import PostgresqlServer
from epochal.testing.servers.proxy import TcpProxy, proxy
from tests.kit.databases import DbmsDatabase


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.server),
        pytest.param("mariadb", marks=pytest.mark.server),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'database.sqlite'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(scope="module")
def postgresql_proxy(postgresql_server: PostgresqlServer) -> Iterator[TcpProxy]:
    with proxy(postgresql_server.port) as running:
        yield running


@pytest.fixture
def new_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DbmsDatabase]]:
    databases: list[DbmsDatabase] = []

    def make(url: str, **writing: Any) -> DbmsDatabase:
        databases.append(DbmsDatabase(url, tmp_path, monkeypatch, **writing))
        return databases[-1]

    yield make
    for database in databases:
        database.close()
