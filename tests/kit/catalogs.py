"""Catalogs with this version's tables. They are migrated once and then copied, which takes a fraction of the time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from epochal.service.catalog.migration import migrate


def new_sqlite_catalog(file: Path) -> str:
    """Create an empty catalog in ``file`` and return its URL."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copy(_migrated(), file)
    return f"sqlite:///{file}"


@cache
def _migrated() -> Path:
    file = Path(tempfile.mkdtemp(prefix="epochal-catalog-")) / "catalog.sqlite"
    atexit.register(shutil.rmtree, file.parent)
    migrate(f"sqlite:///{file}")
    return file
