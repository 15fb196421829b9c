from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.migrations import expanding
from epochal.service.catalog import migration
from tests.kit.next_migration import add_next_migration


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Make this process one of the next version, which has one more migration; returns its revision."""

    def upgrade(more: str = "") -> str:
        folder = tmp_path / "migrations"
        shutil.copytree(migration.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
        revision = add_next_migration(folder, more)
        monkeypatch.setattr(migration, "FOLDER", folder)
        monkeypatch.setattr(expanding, "LOCK_TIMEOUT_SECONDS", 0.2)
        monkeypatch.setattr(migration, "_PAUSE_SECONDS", 0.1)
        return revision

    return upgrade


@pytest.fixture
def next_revision(next_version: Callable[..., str]) -> str:
    return next_version()
