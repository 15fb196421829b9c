"""Fixtures of the tests of sinks of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.sink_contract import DecidedEpochs
from tests.kit.delta_tables import DeltaFolder


@pytest.fixture
def folder(tmp_path: Path) -> DeltaFolder:
    return DeltaFolder(tmp_path / "orders")


@pytest.fixture
def decided() -> DecidedEpochs:
    return DecidedEpochs()
