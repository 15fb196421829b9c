"""Catalogs with this version's tables. They are migrated once and then copied, which takes a fraction of the time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import migrate


def new_sqlite_catalog(file: Path) -> str:
    """Create an empty catalog in ``file`` and return its URL."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copy(_migrated(), file)
    return f"sqlite:///{file}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty catalog, on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return new_sqlite_catalog(tmp_path / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.close()


@cache
def _migrated() -> Path:
    file = Path(tempfile.mkdtemp(prefix="epochal-catalog-")) / "catalog.sqlite"
    atexit.register(shutil.rmtree, file.parent)
    migrate(f"sqlite:///{file}")
    return file
