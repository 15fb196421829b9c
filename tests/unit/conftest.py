"""Fixtures of several files of unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.snapshots import row_groups
from epochal.snapshots.store import SnapshotStore


@pytest.fixture
def nothing_kept() -> None:
    """Files of the same bytes, of other tests, may be kept in memory."""
    row_groups.forget()


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """A store in memory."""
    return SnapshotStore(f"memory://{tmp_path}")
