"""Servers of epochal.testing answer, and leave no processes or files when they are stopped."""

from __future__ import annotations

import os
import time

import psycopg
import pytest

from epochal.testing.servers import ServerUnavailable
from epochal.testing.servers.postgresql import PostgresqlServer
from epochal.testing.servers.process import ServerProcess, accepts
from epochal.testing.servers.spark_standalone import standalone_cluster


@pytest.mark.server
def test_postgresql_databases_are_separate_and_empty(postgresql_server: PostgresqlServer) -> None:
    first, second = postgresql_server.create_database(), postgresql_server.create_database()
    assert first != second
    with psycopg.connect(first.replace("+psycopg", "")) as connection:
        connection.execute("create table only_here (number int)")
    with psycopg.connect(second.replace("+psycopg", "")) as connection:
        tables = connection.execute("select count(*) from pg_tables where tablename = 'only_here'").fetchone()
    assert tables == (0,)


@pytest.mark.server
def test_postgresql_allows_prepared_transactions(postgresql_url: str) -> None:
    with psycopg.connect(postgresql_url.replace("+psycopg", "")) as connection:
        setting = connection.execute("show max_prepared_transactions").fetchone()
    assert setting == ("64",)


def test_server_that_exits_during_start_reports_its_log(tmp_path) -> None:
    process = ServerProcess("sh", ["sh", "-c", "echo no room here; exit 3"], tmp_path / "log")
    with pytest.raises(ServerUnavailable, match="no room here"):
        process.wait_until(lambda: False, seconds=10)


def test_stop_kills_child_processes(tmp_path) -> None:
    script = "sleep 600 & echo $!; wait"
    process = ServerProcess("sh", ["sh", "-c", script], tmp_path / "log")
    process.wait_until(lambda: process.log.read_text().endswith("\n"), seconds=10)
    child = int(process.log.read_text())
    process.stop()
    assert not process.running
    deadline = time.monotonic() + 10  # signals are delivered asynchronously
    while _running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _running(child)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.long
def test_standalone_cluster_starts_two_workers_and_stops() -> None:
    try:
        with standalone_cluster() as cluster:
            assert [worker.running for worker in cluster.workers] == [True, True]
            port = int(cluster.master_url.rsplit(":", 1)[1])
            assert accepts(port)
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    assert not accepts(port)
    assert not any(worker.running for worker in cluster.workers)
    assert not cluster.folder.exists()


def _running(pid: int) -> bool:
    """Zombies, which their new parent has not collected yet, count as ended."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
    except OSError:
        return os.path.exists(f"/proc/{pid}")
