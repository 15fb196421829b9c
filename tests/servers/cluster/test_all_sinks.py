"""The chaos application on a Spark standalone cluster whose worker and executor are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.faults import Fault
from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.kafka import KafkaServer
from epochal.testing.servers.postgresql import PostgresqlServer
from epochal.testing.servers.s3 import SeaweedServer
from epochal.testing.servers.spark_standalone import StandaloneCluster
from tests.servers.chaos.history import ROWS_AN_EPOCH, History
from tests.servers.chaos.servers import Servers, with_proxies

# Long because it starts eleven JVMs. tests/service/fault covers lost tasks on one machine in every run.
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(900)]

EPOCHS = 6
EXECUTORS = {"spark.executor.cores": "2", "spark.executor.memory": "512m", "spark.cores.max": "4"}


@pytest.fixture
def servers(
    kafka_server: KafkaServer,
    postgresql_server: PostgresqlServer,
    hdfs_server: HdfsServer,
    s3_server: SeaweedServer,
) -> Iterator[Servers]:
    with with_proxies(postgresql_server, hdfs_server, kafka_server, s3_server) as servers:
        yield servers


def test_killed_worker_and_executor_lose_no_rows(cluster: StandaloneCluster, servers: Servers, tmp_path: Path) -> None:
    """A worker dies after its sink task has written; in a later epoch an executor dies while its tasks run."""
    history = History(1, tmp_path, servers, "folder")
    history.configuration |= {"master": cluster.master_url, **EXECUTORS}
    history.feed(EPOCHS * ROWS_AN_EPOCH)
    worker = Fault("T3.pre-committed", "kill", epoch=2, once=str(tmp_path / "flags" / "worker"))
    tasks = Fault("T2.processed", "delay", epoch=4, once=str(tmp_path / "flags" / "tasks"), seconds=10)
    driver = history.start(task_faults=[worker, tasks], epochs=EPOCHS)
    try:
        driver.wait_until(lambda: (tmp_path / "flags" / "tasks").exists())
        os.kill(cluster.executors()[0], signal.SIGKILL)
        assert driver.wait() == 0, driver.log_end()
        assert (tmp_path / "flags" / "worker").exists()
        history.feed(ROWS_AN_EPOCH)
        history.finish()
        assert history.report.violations + history.violations() == []
    finally:
        driver.kill()
        history.watcher.stop()
