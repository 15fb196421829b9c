"""Fixture: a Spark standalone cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster
from tests.kit.servers import or_skipped


@pytest.fixture
def cluster() -> Iterator[StandaloneCluster]:
    yield from or_skipped(standalone_cluster(workers=2, cores=2))
