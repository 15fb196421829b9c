"""Fixtures shared by the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.snapshots import row_groups
from epochal.snapshots.store import SnapshotStore


@pytest.fixture
def empty_row_group_cache() -> None:
    """Clears the cache, which may hold files with the same bytes from other tests."""
    row_groups.forget()


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """An in-memory store."""
    return SnapshotStore(f"memory://{tmp_path}")
