"""The Iceberg sink satisfies the contract of sinks, with a catalog in SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import DegradedSinkHarness, Losses, SinkBackendContract, SinkHarness, StepAnswers
from tests.kit.iceberg_tables import sqlite_catalog


@pytest.mark.claim("docs/concepts/guarantees.md: each epoch as a whole, once, after the commit decision")
class TestIcebergSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SinkHarness:
        return sqlite_catalog(tmp_path)


class TestCollectingIcebergSink(SinkBackendContract):
    """Tasks write logs, of which the driver makes files."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> SinkHarness:
        return sqlite_catalog(tmp_path / "tables", store=SnapshotStore(str(tmp_path / "store")))


class TestIcebergSinkDegraded(SinkBackendContract):
    """Every step loses its result. Calls are repeated by other processes."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> SinkHarness:
        return DegradedSinkHarness(sqlite_catalog(tmp_path), Losses(StepAnswers()))
