"""A cluster, and the application under fault from the tests beside these."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster
from tests.servers import or_skipped


@pytest.fixture(scope="session")
def fault_kit() -> ModuleType:
    """``tests/fault/conftest.py``, which pytest gives to its own folder only."""
    path = Path(__file__).parents[1] / "fault" / "conftest.py"
    spec = spec_from_file_location("fault_kit", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cluster() -> Iterator[StandaloneCluster]:
    yield from or_skipped(standalone_cluster(workers=2, cores=2))
