"""Fixtures: the URL of a database of each kind, and a proxy before PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.testing.servers.postgresql import PostgresqlServer
from epochal.testing.servers.proxy import TcpProxy, proxy


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
