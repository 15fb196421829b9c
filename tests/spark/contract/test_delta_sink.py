"""The Delta sink satisfies the contract of sinks, on a local folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.contract import DegradedSinkHarness, Losses, SinkBackendContract, SinkHarness, StepAnswers
from tests.kit.delta_tables import DeltaFolder


@pytest.mark.claim("docs/concepts/guarantees.md: each epoch as a whole, once, after the commit decision")
class TestDeltaSink(SinkBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SinkHarness:
        return DeltaFolder(tmp_path / "orders")


class TestCollectingDeltaSink(SinkBackendContract):
    """Tasks write logs, of which the driver makes files."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> SinkHarness:
        return DeltaFolder(tmp_path / "orders", collects=True)


class TestDeltaSinkDegraded(SinkBackendContract):
    """Every step loses its result. Calls are repeated by other processes."""

    @pytest.fixture(params=[False, True], ids=["each", "collecting"])
    def harness(self, tmp_path: Path, request: pytest.FixtureRequest) -> SinkHarness:
        folder = DeltaFolder(tmp_path / "orders", collects=request.param)
        return DegradedSinkHarness(folder, Losses(StepAnswers()))
