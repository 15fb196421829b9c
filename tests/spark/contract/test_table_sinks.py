"""The Delta and the Iceberg sink satisfy the contract of sinks, on a local folder and with a catalog in SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import DegradedSinkHarness, Losses, SinkBackendContract, SinkHarness, StepAnswers
from tests.kit.delta_tables import DeltaFolder
from tests.kit.iceberg_tables import sqlite_catalog

KINDS = ("delta", "delta-collecting", "iceberg", "iceberg-collecting")
"""With ``collecting``, tasks write logs, of which the driver makes files."""


def table(kind: str, folder: Path) -> SinkHarness:
    name, _, collecting = kind.partition("-")
    if name == "delta":
        return DeltaFolder(folder / "orders", collects=bool(collecting))
    return sqlite_catalog(folder / "tables", store=SnapshotStore(str(folder / "store")) if collecting else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.claim("docs/concepts/guarantees.md: each epoch as a whole, once, after the commit decision")
class TestTableSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path, kind: str) -> SinkHarness:
        return table(kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
class TestTableSinkDegraded(SinkBackendContract):
    """Every step loses its result. Calls are repeated by other processes."""

    @pytest.fixture
    def harness(self, tmp_path: Path, kind: str) -> SinkHarness:
        return DegradedSinkHarness(table(kind, tmp_path), Losses(StepAnswers()))
