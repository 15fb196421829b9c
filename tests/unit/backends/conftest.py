"""Fixtures of the tests of sinks of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.testing.sink_contract import DecidedEpochs
from tests.kit.delta_tables import DeltaFolder
from tests.kit.evolving_tables import TABLES, Harness, table_of


@pytest.fixture
def folder(tmp_path: Path) -> DeltaFolder:
    return DeltaFolder(tmp_path / "orders")


@pytest.fixture
def decided() -> DecidedEpochs:
    return DecidedEpochs()


@pytest.fixture(params=TABLES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    return table_of(request.param, tmp_path)
