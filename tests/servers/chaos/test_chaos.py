"""A sample of the chaos runs; `make chaos` runs hundreds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.kafka import KafkaServer
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from epochal.testing.servers.s3 import SeaweedServer, s3
from tests.kit.servers import or_skipped
from tests.servers.chaos.history import History, Place
from tests.servers.chaos.servers import Servers, with_proxies

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(900)]


@pytest.fixture
def database() -> Iterator[PostgresqlServer]:
    """A server of this test, because the test stops it."""
    yield from or_skipped(postgresql())


@pytest.fixture
def objects() -> Iterator[SeaweedServer]:
    """A server of this test, because the test stops it."""
    yield from or_skipped(s3())


@pytest.fixture
def servers(
    database: PostgresqlServer, hdfs_server: HdfsServer, kafka_server: KafkaServer, objects: SeaweedServer
) -> Iterator[Servers]:
    with with_proxies(database, hdfs_server, kafka_server, objects) as servers:
        yield servers


@pytest.mark.parametrize(("seed", "place"), [(1, "folder"), (2, "s3")])
def test_disturbances_leave_every_record_in_every_sink_once(
    seed: int, place: Place, servers: Servers, tmp_path: Path
) -> None:
    report = History(seed, tmp_path, servers, place).live(lives=3)
    assert report.violations == []
    assert report.fired.total() > 0
