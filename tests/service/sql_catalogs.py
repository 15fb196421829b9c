"""Fixtures of an empty catalog, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.service.catalog.database import Database
from tests.kit.catalogs import new_sqlite_catalog


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return new_sqlite_catalog(tmp_path / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()
